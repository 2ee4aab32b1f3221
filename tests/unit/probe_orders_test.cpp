// Probe orders: remainders without a division, and orders that visit every lane once.
#include "core/lane/probe_orders.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "fixture.h"

namespace lanemalloc {
namespace {

TEST(ModulusTest, EqualsTheRemainderForEveryNAndManyR) {
  Random random(3);
  Modulus modulus;
  for (uint32_t n = 1; n <= ProbeOrders::kMostLanes; ++n) {
    modulus.set(n);
    ASSERT_EQ(modulus.n(), n);
    std::vector<uint32_t> all = {0, 1, n - 1, n, n + 1, 0x7FFFFFFF, 0x80000000, ~0u - 1, ~0u};
    for (uint32_t edge : {~0u / n * n, ~0u / 2 / n * n})
      all.insert(all.end(), {edge - 1, edge, edge + 1});
    for (int i = 0; i < 30; ++i)
      all.push_back(static_cast<uint32_t>(random.below(uint64_t{1} << 32)));
    for (uint32_t r : all) ASSERT_EQ(modulus.of(r), r % n) << r << " % " << n;
  }
}

TEST(ProbeOrdersTest, EveryStartAndStepVisitsEveryLaneOnce) {
  ProbeOrders orders;
  for (uint32_t n = 1; n <= 64; ++n) {
    orders.set(n);
    for (uint32_t start = 0; start < n; ++start) {
      ASSERT_EQ(orders.start(start), start);
      for (uint32_t i = 0; i < orders.step_count(); ++i) {
        uint64_t seen = 0;
        uint32_t lane = start;
        for (uint32_t k = 0; k < n; ++k, lane = orders.next(lane, orders.step(i)))
          seen |= uint64_t{1} << lane;
        ASSERT_EQ(seen, n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1)
            << n << " lanes from " << start << " by " << orders.step(i);
        ASSERT_EQ(lane, start);
      }
    }
  }
}

// The steps are all numbers below N that share no divisor with N, each once. Euler's phi says how
// many there are.
TEST(ProbeOrdersTest, TheStepsOfEveryNAreThoseThatShareNoDivisor) {
  constexpr uint32_t kMost = ProbeOrders::kMostLanes;
  std::vector<uint32_t> phi(kMost + 1);
  std::iota(phi.begin(), phi.end(), 0);
  for (uint32_t p = 2; p <= kMost; ++p)
    if (phi[p] == p)
      for (uint32_t k = p; k <= kMost; k += p) phi[k] -= phi[k] / p;
  ProbeOrders orders;
  const auto expect_right = [&](uint32_t n) {
    orders.set(n);
    ASSERT_EQ(orders.lanes(), n);
    ASSERT_EQ(orders.step_count(), phi[n]) << n;
    uint32_t before = 0;
    for (uint32_t i = 0; i < phi[n]; ++i) {
      const uint32_t step = orders.step(i);
      ASSERT_TRUE(n == 1 ? step == 0 : step > before && step < n && std::gcd(step, n) == 1)
          << step << ", " << n;
      before = step;
    }
  };
  // Downwards too: numbers that a larger N has left in the table must not be taken for steps.
  for (uint32_t n = 1; n <= kMost; n += n < 300 || kShorter == 1 ? 1 : 19) expect_right(n);
  for (uint32_t n = kMost; n > 1; n -= n / 2) expect_right(n);
}

TEST(ProbeOrdersTest, EveryCountOfProbesHasARowThatHoldsIt) {
  for (uint32_t probes = 1; probes <= ProbeOrders::kMostLanes; ++probes) {
    const unsigned row = probes_row(probes);
    ASSERT_GE(row, 1u);
    ASSERT_LT(row, kProbesRows);
    ASSERT_LE(probes, most_probes_of(row));
    ASSERT_GT(probes, most_probes_of(row - 1));
  }
}

}  // namespace
}  // namespace lanemalloc
