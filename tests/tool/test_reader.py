"""The reader over memory that is made by hand: what it adds up,
and what it does with what is torn, missing or gone."""

from __future__ import annotations

import pytest
from synthetic import (
    BASE,
    BLOCK,
    CELLS,
    LANES,
    OWNERS,
    PARTS,
    STATE_BYTES,
    STATES,
    WORLD,
    Synthetic,
    bins,
    link_to,
)

from lanemalloc.figures import snapshot_json
from lanemalloc.live.model import Session
from lanemalloc.memory import Gone
from lanemalloc.reader import EXACT, MOST_SITES, Wanted
from lanemalloc.slabs import CLEAN, DIRTY, read_free_runs, spread
from lanemalloc.ui import Problem


def busy() -> Synthetic:
    """Two lanes; 60 objects of 16 bytes in use by the first one's slab:
    10 wait in its bin, 5 are on their way."""
    memory = Synthetic()
    one = memory.add_lane(taken=[0, 100, 0, 0, 0], received=[0, 20, 0, 0, 0], thread=77, misses=3)
    memory.add_lane(sent=[0, 25, 0, 0, 0], batches_to=[0, 0, 0, 9, 0, 0, 0, 0], thread=78)
    at = memory.add_slab(one, 1, used=60, carved=80)
    memory.lane(one, bins=bins(0, memory.link(*(at + 16 * i for i in range(10)))))
    return memory


def test_live_objects_are_those_in_use_less_those_that_wait_or_are_on_their_way() -> None:
    snapshot = busy().reader().read(EXACT)
    assert snapshot.classes.live[1] == 60 - 10 - 5
    assert snapshot.classes.waiting[1] == 10
    assert snapshot.classes.in_flight[1] == 5
    assert snapshot.classes.allocations[1] == 90
    assert snapshot.frees == 90 - 45
    assert snapshot.live_bytes == 45 * 16
    assert snapshot.left_out == []


def test_slabs_are_counted_by_how_full_they_are() -> None:
    memory = Synthetic()
    lane = memory.add_lane()
    holds = BLOCK // 1024
    for used in (0, 1, holds // 8, holds // 8 + 1, holds - 1, holds):
        memory.add_slab(lane, 3, used=used, carved=holds)
    memory.add_slab(lane, 4, used=1, carved=1)
    snapshot = memory.reader().read()
    assert snapshot.classes.by_fill[3].tolist() == [1, 2, 1, 0, 0, 0, 0, 0, 1, 1]
    assert snapshot.classes.by_fill[4].tolist() == [0] * 9 + [1]
    assert (snapshot.classes.by_fill.sum(axis=1) == snapshot.classes.slabs).all()
    rows = {row["size"]: row for row in snapshot_json(snapshot)["classes"]}
    assert (rows[1024]["below"], sum(rows[1024]["by_fill"])) == (32, rows[1024]["slabs"])


def test_without_bins_what_waits_counts_as_live_and_that_is_said() -> None:
    snapshot = busy().reader().read(Wanted(slabs=True, bins=False))
    assert snapshot.classes.live[1] == 60 - 5
    assert any("counts as live" in line for line in snapshot.left_out)


def test_bins_stay_known_until_they_are_read_again() -> None:
    reader = busy().reader()
    reader.read(EXACT)
    assert reader.read(Wanted(slabs=False, bins=False)).classes.live[1] == 45


def test_a_list_that_leads_out_of_its_slab_is_counted_as_far_as_it_goes() -> None:
    memory = busy()
    memory.link(BASE + 16 * 4, 0x1234567)
    snapshot = memory.reader().read(EXACT)
    assert snapshot.classes.waiting[1] == 5
    assert any("1 changed while they were followed" in line for line in snapshot.left_out)


def test_a_list_in_a_circle_ends() -> None:
    memory = busy()
    memory.link(BASE, BASE + 16)
    memory.link(BASE + 16, BASE)
    assert memory.reader().read(EXACT).classes.waiting[1] <= 80


def test_a_head_that_lies_in_no_slab_is_left_out() -> None:
    memory = busy()
    memory.lane(4, bins=bins(0, link_to(0xDEAD_BEEF_0000)))
    assert memory.reader().read(EXACT).classes.waiting[1] == 10


def test_a_slab_that_was_unmapped_meanwhile_is_left_out() -> None:
    memory = busy()
    memory.unmap(BASE)
    assert memory.reader().read(EXACT).classes.waiting[1] == 0


def test_slabs_of_the_depot_count_and_direct_frees_and_depot_frees_do() -> None:
    memory = busy()
    memory.add_slab(2, 2, used=8, carved=10)
    memory.world(direct_frees=[0, 0, 4, 0, 0], depot_freed=[0, 0, 1, 0, 0])
    assert memory.reader().read(EXACT).classes.live[2] == 8 - 4 + 1


def test_sampled_objects_count_to_their_class() -> None:
    memory = busy()
    memory.world(sampled_allocations=[0, 7, 0, 0, 0], sampled_frees=[0, 2, 0, 0, 0])
    first = memory.add_blocks(1, 1)
    memory.set("state", STATES + first * STATE_BYTES, length=1, sample=0x77, sample_class=1)
    snapshot = memory.reader().read(EXACT)
    assert snapshot.classes.live[1] == 45 + 5
    assert snapshot.large_bytes == 0


def test_a_slab_with_more_frees_than_objects_counts_as_empty() -> None:
    memory = Synthetic()
    one = memory.add_lane()
    memory.add_slab(one, 1, used=-3, carved=10)
    assert memory.reader().read(EXACT).classes.used[1] == 0


def test_slabs_of_several_blocks_and_their_owners_bytes() -> None:
    memory = Synthetic()
    one, two = memory.add_lane(), memory.add_lane()
    memory.add_slab(one, 4, used=4, carved=5, blocks=5)
    memory.add_slab(two, 1, used=0, carved=5)
    memory.add_slab(one, 1, used=2, carved=5)
    snapshot = memory.reader().read(EXACT)
    assert snapshot.lanes.bytes_held.tolist() == [6 * BLOCK, BLOCK]
    assert snapshot.lanes.bytes_empty.tolist() == [0, BLOCK]
    assert snapshot.classes.slab_bytes[4] == 5 * BLOCK
    assert snapshot.classes.slabs.tolist() == [0, 2, 0, 0, 1]


def test_sites_are_those_of_the_newest_waits_first_where_most_was_waited() -> None:
    memory = busy()
    memory.set("cell", LANES + 512, waited_ns=100, sites=[0x70, 0x71])
    memory.set("cell", LANES + 1024 + 512, waited_ns=300, sites=[0x80, 0x70])
    memory.set("cell", WORLD + 1024, sites=[0x90, 0])
    reader = memory.reader()
    for lane, depot, fresh in (reader.read().cells, reader.cells()):
        assert (lane.sites, depot.sites, fresh.sites) == ((0x80, 0x70, 0x71), (0x90,), ())
    for _ in range(20):
        memory.add_lane()
        memory.set("cell", LANES + (memory.lanes - 1) * 1024 + 512, sites=[0x100 + memory.lanes, 0])
    assert memory.reader().read().cells[0].sites[:2] == (0x80, 0x70)
    assert len(memory.reader().read().cells[0].sites) == MOST_SITES


def test_cells_of_all_pools_and_budgets_are_one_each() -> None:
    memory = busy()
    assert [cell.name for cell in memory.reader().read().cells] == ["lane", "depot", "fresh blocks"]
    memory.write(OWNERS, bytes(4096))
    for i in (0, 1):
        memory.set(
            "family",
            OWNERS + i * 256,
            next=OWNERS + 256 if i == 0 else 0,
            contention=OWNERS + i * 256 + 64,
        )
        memory.set(
            "cell", OWNERS + i * 256 + 64, count=5, waits=i + 1, waited_ns=10, sites=[0x60 + i, 0]
        )
        memory.set("family", OWNERS + i * 256, kinds=OWNERS + 1024 + i * 256)
        memory.set("kind", OWNERS + 1024 + i * 256, budget=OWNERS + 2048 + i * 256)
        memory.set("budget", OWNERS + 2048 + i * 256, count=7, failures=i)
    memory.world(first_family=OWNERS)
    *_, pools, budgets = memory.reader().read().cells
    assert (budgets.name, budgets.is_loop, budgets.count, budgets.failures) == (
        "budgets",
        True,
        14,
        1,
    )
    for cell in (pools, memory.reader().cells()[-1]):
        assert (cell.name, cell.count, cell.waits, cell.waited_ns, cell.sites) == (
            "pools",
            10,
            3,
            20,
            (0x60, 0x61),
        )


def test_cells_of_lanes_are_added_up_and_loops_have_no_waits() -> None:
    memory = busy()
    for i in (0, 1):
        memory.set(
            "cell",
            LANES + i * 1024 + 512,
            count=10,
            failures=i + 1,
            waits=2,
            waited_ns=500,
            waits_by_time=[0, 3],
        )
    memory.set("cell", WORLD + 1280, count=5, failures=4, waits=99)
    lane, depot, fresh = memory.reader().read().cells
    assert (lane.count, lane.failures, lane.waits, lane.waited_ns) == (20, 3, 4, 1000)
    assert lane.histogram[1] == 6
    assert (fresh.name, fresh.count, fresh.failures, fresh.waits) == (
        "fresh blocks",
        5,
        4,
        0,
    )
    assert depot.count == 0
    assert memory.reader().read().lanes.failures.tolist() == [1, 2]


def test_a_process_that_has_no_lane_yet() -> None:
    snapshot = Synthetic().reader().read(EXACT)
    assert snapshot.lanes.thread.tolist() == []
    assert snapshot_json(snapshot)["lanes"] == []


def test_lanes_that_are_not_made_are_left_out_and_later_ones_found() -> None:
    memory = Synthetic()
    memory.add_lane(thread=5)
    memory.add_lane(made=0, thread=6)
    memory.add_lane(thread=7)
    lanes = memory.reader().read().lanes
    assert lanes.thread.tolist() == [5, 7]
    assert lanes.owner.tolist() == [3, 5]


def test_a_shared_lane_without_a_number_is_one_for_overflow() -> None:
    memory = Synthetic()
    memory.add_lane(how=1, number=0xFFFF)
    memory.add_lane(how=1, number=0xFFFF_FFFF)
    snapshot = memory.reader().read()
    session = Session(1, snapshot=snapshot)
    assert [session.lane_name(i) for i in (0, 1)] == ["shared 65535", "overflow"]
    assert [lane["number"] for lane in snapshot_json(snapshot)["lanes"]] == [65535, None]


def test_five_thousand_lanes() -> None:
    memory = Synthetic()
    for i in range(5000):
        memory.add_lane(taken=[0, i, 0, 0, 0])
    snapshot = memory.reader().read()
    assert snapshot.lane_count == 5000
    assert snapshot.classes.allocations[1] == 4999 * 5000 // 2


def test_rates_between_two_snapshots() -> None:
    memory = busy()
    reader = memory.reader()
    before = reader.read(EXACT)
    memory.lane(3, taken=[0, 300, 0, 0, 0], misses=13)
    memory.add_lane(taken=[0, 50, 0, 0, 0])
    after = reader.read(EXACT)
    after.at_ns = before.at_ns + 2_000_000_000
    after.moment.slabs_ns = after.at_ns
    before.moment.slabs_ns = before.at_ns
    rates = after.difference(before)
    assert rates.class_allocations[1] == pytest.approx(125)
    assert rates.class_frees[1] == pytest.approx(125)
    assert rates.lane_misses.tolist() == [5.0, 0.0, 0.0]


def test_counters_that_went_back_count_as_unchanged() -> None:
    memory = busy()
    reader = memory.reader()
    before = reader.read(EXACT)
    memory.lane(3, taken=[0, 0, 0, 0, 0])
    assert reader.read(EXACT).difference(before).allocations == 0


def test_another_version_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(Problem, match=r"(?s)version 2.*pipx install"):
        Synthetic(version=2).reader()


@pytest.mark.parametrize("name", ["world.map_at", "lane.taken", "state.countdown"])
def test_a_field_that_is_needed_and_missing_is_named(name: str) -> None:
    parts = {key: value for key, value in PARTS.items() if key != name}
    memory = Synthetic.__new__(Synthetic)
    with pytest.raises((Problem, KeyError), match=name):
        Synthetic.__init__(memory, parts={**parts})
        memory.reader()


@pytest.mark.parametrize(
    "name",
    [
        "world.dirty_blocks",
        "lane.misses",
        "state.kind",
        "world.base",
        "lane.bins",
        "family.next",
        "cell.waits",
        "cell.sites",
    ],
)
def test_other_fields_may_be_missing(name: str) -> None:
    memory = busy()
    rest = {key: value for key, value in PARTS.items() if key != name}
    fewer = Synthetic()
    fewer.pages, fewer.parts, fewer.blocks, fewer.lanes = (
        memory.pages,
        rest,
        memory.blocks,
        memory.lanes,
    )
    drop_field(fewer, name)
    snapshot = fewer.reader().read(EXACT)
    assert snapshot.classes.used[1] == 60
    assert [cell.name for cell in fewer.reader().cells()] == ["lane", "depot", "fresh blocks"]


def drop_field(memory: Synthetic, name: str) -> None:
    """Gives it a name that nobody asks for."""
    from synthetic import FIELDS

    memory.write(
        FIELDS + list(PARTS).index(name) * 48,
        name.split(".")[0].encode() + b".nothing\0",
    )


def test_a_process_that_dies_is_gone() -> None:
    memory = busy()
    reader = memory.reader()
    memory.dead = True
    with pytest.raises(Gone):
        reader.read()


def test_a_process_that_runs_another_program_is_gone() -> None:
    memory = busy()
    reader = memory.reader()
    memory.pages.clear()
    with pytest.raises(Gone, match="another program"):
        reader.read()


def test_a_damaged_root_is_refused() -> None:
    memory = busy()
    memory.unmap(CELLS)
    with pytest.raises(Problem, match="leads nowhere"):
        memory.reader()


def test_heaps_and_pools_are_followed_and_a_circle_ends() -> None:
    memory = busy()
    kind, budget = OWNERS + 512, OWNERS + 1024
    memory.write(OWNERS, bytes(2048))
    memory.set("family", OWNERS, next=OWNERS + 64, type=1, name=b"sessions", kinds=kind)
    memory.set("family", OWNERS + 64, next=OWNERS, type=0, name=b"tenant")
    memory.set("kind", kind, size=48, contended=4, budget=budget)
    memory.set("budget", budget, used=4800, peak=9600, limit=-1)
    memory.world(first_family=OWNERS)
    memory.add_slab(0x8003, 0, used=12, carved=20, kind=kind)
    reader = memory.reader()
    for _ in range(2):  # the second time by the addresses of the first
        snapshot = reader.read(EXACT)
        pool, heap = snapshot.owners
        assert (pool.name, pool.kind, pool.used, pool.limit, pool.live, pool.slabs) == (
            "sessions",
            "pool",
            4800,
            None,
            12,
            1,
        )
        assert (heap.name, heap.kind, heap.used) == ("tenant", "heap", 0)


def test_free_runs_are_walked_from_end_to_end() -> None:
    memory = busy()
    memory.add_run(DIRTY, 5)
    memory.add_run(CLEAN, 3)
    memory.add_slab(3, 1, used=1, carved=1)
    memory.add_run(DIRTY, 1)
    memory.set(
        "state", STATES + 3 * STATE_BYTES, block_kind=DIRTY, length=9
    )  # inside of a run: of no meaning
    reader = memory.reader()
    reader.read(EXACT)
    assert reader._slabs is not None
    world = {"states_at": STATES}
    runs = read_free_runs(memory, reader.layout, world, reader._slabs, 100)
    assert [(run.first, run.blocks, run.kind) for run in runs] == [
        (1, 5, DIRTY),
        (6, 3, CLEAN),
        (10, 1, DIRTY),
    ]


def test_chunks_are_spread_evenly() -> None:
    assert spread(5) == [0, 4, 2, 1, 3]
    assert sorted(spread(1000)) == list(range(1000))
    assert spread(0) == []


def test_a_budget_of_time_leaves_slabs_out_and_scales_the_others() -> None:
    memory = Synthetic()
    one = memory.add_lane()
    for _ in range(2):
        memory.add_slab(one, 1, used=10, carved=10)
        memory.blocks += 1 << 16
        memory.world(frontier=memory.blocks, opened=memory.blocks)
    # The map between them is not there by hand; only its pages that hold something are.
    for page in range(0x10_000000 // 4096, (0x10_000000 + memory.blocks * 8) // 4096 + 1):
        memory.pages.setdefault(page, bytearray(4096))
    snapshot = memory.reader().read(Wanted(slabs=True, seconds=-1))
    assert snapshot.moment.slabs_share == 0.5
    assert snapshot.classes.used[1] == 20
    assert any("50%" in line for line in snapshot.left_out)
