"""The sqlite3 shell on a database in memory:
inserts in transactions, joins, sorts, groups, updates, deletes."""

import dataclasses
from pathlib import Path

from common import Library

from .program import Sample, Words, prove, run_command, scaled

ROWS = 40_000
# Names and numbers are made from the row's number by multiplications, so every run does the same.
SCRIPT = """\
create table people(id integer primary key, name text, town text, born integer, note blob);
create table orders(id integer primary key, person integer, item text, amount integer, day integer);
create index people_town on people(town, born);
begin;
with recursive n(i) as (select 1 union all select i + 1 from n where i < {people})
  insert into people select i, printf('name-%x-%s', i * 7919 % 1000003, \
substr('abcdefghijklmnopqrstuvwxyz', i % 20, i % 13)),
    'town ' || (i * 31 % 997), 1900 + i % 110, zeroblob(i * 13 % 200) from n;
commit;
begin;
with recursive n(i) as (select 1 union all select i + 1 from n where i < {orders})
  insert into orders select i, i * 613 % {people} + 1, 'item ' || (i * 17 % 5000), \
i * 7 % 1000, i % 3650 from n;
commit;
create index orders_person on orders(person, day);
select town, count(*), sum(amount), max(name) from people join orders on orders.person = people.id
  group by town order by 3 desc, 1 limit 5;
select item, group_concat(name, ',') from (select item, name from orders \
join people on people.id = orders.person
  where day % 10 = 3 order by item, name) group by item order by length(2) desc, item limit 5;
select count(*), sum(length(j)) from \
(select json_object('name', name, 'orders', json_group_array(json_array(item, amount))) as j
  from people join orders on orders.person = people.id group by people.id);
select sum(r) from (select row_number() over (partition by town order by born, name) as r \
from people);
update people set name = upper(name) || '-' || town where id % 3 = 0;
delete from orders where person in (select id from people where born < 1930);
select count(distinct lower(name)), total(length(name)) from people;
create table sorted as select * from orders join people on people.id = orders.person \
order by name, item;
select count(*), sum(rowid * amount % 1000) from sorted;
"""


@dataclasses.dataclass(frozen=True)
class Sqlite:
    name: str = "sqlite"
    packages: tuple[str, ...] = ("sqlite3",)
    about: str = "sqlite3 in memory: inserts, joins, sorts, groups, JSON, updates, deletes"

    def prepare(self, work: Path) -> None:
        pass

    def run(self, library: Library, work: Path, scale: float) -> Sample:
        prove(self.name, "sqlite3", ["sqlite3", ":memory:", "select 1"], library)
        people = scaled(ROWS, scale)
        script = work / f"script-{people}.sql"
        text = SCRIPT.format(people=people, orders=2 * people)
        if not script.exists() or script.read_text() != text:
            script.write_text(text)
        command: Words = ["sqlite3", "-bail", "-init", script, ":memory:", ""]
        return run_command(self.name, command, library, answers=work / f"answers-{people}")
