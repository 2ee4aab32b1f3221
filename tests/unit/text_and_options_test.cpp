// Text and options: what the user reads, and what the user may write.
#include <gtest/gtest.h>

#include <string>

#include "core/engine/options.h"

namespace lanemalloc {
namespace {

std::string string_of(const Text& text) { return {text.data(), text.size()}; }

TEST(TextTest, WritesNumbersOfEverySign) {
  Text text;
  text << uint64_t{0} << ' ' << ~uint64_t{0} << ' ' << int64_t{-1} << ' ' << INT64_MIN << ' ' << -7
       << ' ' << reinterpret_cast<const void*>(0xABC0) << ' ' << static_cast<const void*>(nullptr);
  EXPECT_EQ(string_of(text), "0 18446744073709551615 -1 -9223372036854775808 -7 0xabc0 0x0");
}

TEST(TextTest, CutsWhatIsTooLongAndStillEndsTheLine) {
  Text text;
  for (int i = 0; i < 100; ++i) text << "0123456789";
  const size_t full = text.size();
  EXPECT_LT(full, 1000u);
  text << "more";
  EXPECT_EQ(text.size(), full);
  text.end();
  EXPECT_EQ(text.size(), full);
  EXPECT_EQ(string_of(text).back(), '\n');
  Text brief;
  EXPECT_EQ(string_of(brief.end()), "\n");
}

TEST(TextTest, AddsAtMostSoManyCharacters) {
  Text text;
  text.add("abcdef", 3).add("xy", 10);
  EXPECT_EQ(string_of(text), "abcxy");
}

TEST(TextTest, ShowsNoControlCharactersOfOthers) {
  Text text;
  text.add("a\x1b[2J\nb\x7f\xc3\xa9", 11);
  EXPECT_EQ(string_of(text), "a?[2J?b?\xc3\xa9");
}

class OptionsTest : public testing::Test {
 protected:
  void SetUp() override { said().clear(); }
  // Reads the string. Returns what is said meanwhile.
  std::string read(const char* text, const char* source = "LANEMALLOC_OPTIONS") {
    said().clear();
    reader_.read(source, text);
    return said();
  }
  static std::string& said() {
    static std::string text;
    return text;
  }

  Options options_;
  OptionReader reader_{options_, [](const char* text, Bytes n) { said().append(text, n); }};
};

TEST_F(OptionsTest, NothingIsSaidOfNothing) {
  EXPECT_EQ(read(nullptr), "");
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read(",,,"), "");
  EXPECT_EQ(options_.settings.decay_ms, 1000);
  EXPECT_FALSE(options_.settings.checked);
  EXPECT_EQ(options_.bad_pointer, Options::OnBadPointer::kAbort);
  EXPECT_FALSE(options_.seeing.stats.at_exit);
  EXPECT_FALSE(options_.strict);
  EXPECT_FALSE(reader_.must_stop());
}

TEST_F(OptionsTest, EveryKeyIsRead) {
  EXPECT_EQ(read("decay_ms=0,checked=1,bad_pointer=report,stats=exit,strict=1"), "");
  EXPECT_EQ(options_.settings.decay_ms, 0);
  EXPECT_TRUE(options_.settings.checked);
  EXPECT_EQ(options_.bad_pointer, Options::OnBadPointer::kReport);
  EXPECT_TRUE(options_.seeing.stats.at_exit);
  EXPECT_TRUE(options_.strict);
  EXPECT_EQ(read("decay_ms=-1,checked=0,bad_pointer=ignore,stats=none,strict=0"), "");
  EXPECT_EQ(options_.settings.decay_ms, -1);
  EXPECT_FALSE(options_.settings.checked);
  EXPECT_EQ(options_.bad_pointer, Options::OnBadPointer::kIgnore);
  EXPECT_FALSE(options_.seeing.stats.at_exit);
  EXPECT_FALSE(options_.strict);
  EXPECT_EQ(read("bad_pointer=abort,decay_ms=86400000"), "");
  EXPECT_EQ(options_.bad_pointer, Options::OnBadPointer::kAbort);
  EXPECT_EQ(options_.settings.decay_ms, 86400000);
}

TEST_F(OptionsTest, LanesSayHowTheyAreEntered) {
  const Settings& settings = options_.settings;
  EXPECT_EQ(settings.entry, Entry::kOwned);
  EXPECT_FALSE(settings.choose_entry);
  const struct {
    const char* text;
    Entry entry;
    uint32_t lanes;
    bool choose;
  } kGood[] = {{"lanes=shared:8", Entry::kShared, 8, false},
               {"lanes=owned", Entry::kOwned, 0, false},
               {"lanes=shared:4096", Entry::kShared, 4096, false},
               {"lanes=shared", Entry::kShared, 0, false},
               {"lanes=auto", Entry::kOwned, 0, true},
               {"lanes=percpu", Entry::kPerCpu, 0, false},
               {"lanes=shared:1", Entry::kShared, 1, false}};
  for (const auto& good : kGood) {
    EXPECT_EQ(read(good.text), "");
    EXPECT_EQ(settings.entry, good.entry) << good.text;
    EXPECT_EQ(settings.shared_lanes, good.lanes) << good.text;
    EXPECT_EQ(settings.choose_entry, good.choose) << good.text;
  }
}

TEST_F(OptionsTest, BadLanesAreOneLineThatSaysWhatIsAllowedAndUsed) {
  const std::string allowed = "(owned, shared, shared:N with N up to 4096, percpu or auto), using ";
  for (const char* bad :
       {"", "shared:", "shared:0", "shared:4097", "shared:8x", "shared: 8", "shared:-1", "shared8",
        "percpu:2", "Owned", "own", "ownedx", "shared:99999999999999999999"}) {
    const std::string line = "lanemalloc: LANEMALLOC_OPTIONS: bad value '" + std::string(bad) +
                             "' for 'lanes' " + allowed;
    EXPECT_EQ(read(("lanes=" + std::string(bad)).c_str()), line + "owned\n");
    for (const char* before : {"shared:16", "shared", "percpu", "auto"}) {
      EXPECT_EQ(read(("lanes=" + std::string(before) + ",lanes=" + bad).c_str()),
                line + before + "\n");
    }
    read("lanes=owned");
  }
  EXPECT_EQ(read("lanes"),
            "lanemalloc: LANEMALLOC_OPTIONS: bad value '' for 'lanes' " + allowed + "owned\n");
  Settings settings;
  EXPECT_TRUE(OptionReader::read_lanes("shared:12", 9, settings));
  EXPECT_EQ(settings.shared_lanes, 12u);
  EXPECT_TRUE(OptionReader::read_lanes("shared:12", 8, settings));
  EXPECT_EQ(settings.shared_lanes, 1u) << "it reads no further than the length says";
  EXPECT_FALSE(OptionReader::read_lanes("shared:12", 7, settings));
  EXPECT_EQ(settings.shared_lanes, 1u) << "a bad value changes nothing";
}

TEST_F(OptionsTest, HowLanesAreSharedIsRead) {
  const SharedSettings& shared = options_.settings.shared;
  EXPECT_EQ(shared.probes, 4u);
  EXPECT_FALSE(shared.scan_from_first);
  EXPECT_TRUE(shared.use_precedence);
  EXPECT_FALSE(shared.wait_on_random);
  EXPECT_EQ(read("probes=1,scan=first,precedence=0,wait_on=random"), "");
  EXPECT_EQ(shared.probes, 1u);
  EXPECT_TRUE(shared.scan_from_first);
  EXPECT_FALSE(shared.use_precedence);
  EXPECT_TRUE(shared.wait_on_random);
  EXPECT_EQ(read("probes=all,scan=coprime,precedence=1,wait_on=current"), "");
  EXPECT_EQ(shared.probes, ProbeOrders::kMostLanes);
  EXPECT_FALSE(shared.scan_from_first);
  EXPECT_TRUE(shared.use_precedence);
  EXPECT_FALSE(shared.wait_on_random);
  EXPECT_EQ(read("probes=4096"), "");
  EXPECT_EQ(shared.probes, 4096u);
}

TEST_F(OptionsTest, BadWaysToShareLanesAreOneLineThatSaysWhatIsAllowedAndUsed) {
  const std::string begin = "lanemalloc: LANEMALLOC_OPTIONS: bad value ";
  for (const char* bad : {"", "0", "4097", "-1", "4x", "All", "alll"}) {
    EXPECT_EQ(read(("probes=" + std::string(bad)).c_str()),
              begin + "'" + bad + "' for 'probes' (1 to 4096, or all), using 4\n");
  }
  EXPECT_EQ(options_.settings.shared.probes, 4u);
  EXPECT_EQ(read("scan=last"), begin + "'last' for 'scan' (coprime or first), using coprime\n");
  EXPECT_EQ(read("scan=first,scan="), begin + "'' for 'scan' (coprime or first), using first\n");
  EXPECT_EQ(read("precedence=2"), begin + "'2' for 'precedence' (0 or 1), using 1\n");
  EXPECT_EQ(read("precedence=0,precedence=yes"),
            begin + "'yes' for 'precedence' (0 or 1), using 0\n");
  EXPECT_EQ(read("wait_on=any"),
            begin + "'any' for 'wait_on' (current or random), using current\n");
  EXPECT_EQ(read("wait_on=random,wait_on=Random"),
            begin + "'Random' for 'wait_on' (current or random), using random\n");
  EXPECT_NE(read("lane=owned").find("'lanes'?"), std::string::npos);
  EXPECT_NE(read("probe=4").find("'probes'?"), std::string::npos);
  EXPECT_NE(read("waiton=random").find("'wait_on'?"), std::string::npos);
  EXPECT_NE(read("scans=first").find("'scan'?"), std::string::npos);
  EXPECT_NE(read("precedense=1").find("'precedence'?"), std::string::npos);
}

TEST_F(OptionsTest, TheEntryInUseIsWrittenAsItIsRead) {
  const auto written = [](Entry entry, uint32_t lanes) {
    Text text;
    OptionReader::write_entry(text, entry, lanes);
    return string_of(text);
  };
  EXPECT_EQ(written(Entry::kOwned, 8), "owned");
  EXPECT_EQ(written(Entry::kShared, 8), "shared:8");
  EXPECT_EQ(written(Entry::kShared, 0), "shared");
  EXPECT_EQ(written(Entry::kPerCpu, 8), "percpu");
}

TEST_F(OptionsTest, TheLaterOneWins) {
  read("decay_ms=5,decay_ms=7");
  EXPECT_EQ(options_.settings.decay_ms, 7);
  read("decay_ms=9", "lanemalloc_options");
  EXPECT_EQ(options_.settings.decay_ms, 9);
}

TEST_F(OptionsTest, AnUnknownKeyIsOneLineThatNamesTheNearest) {
  EXPECT_EQ(read("decoy_ms=5"),
            "lanemalloc: LANEMALLOC_OPTIONS: unknown option 'decoy_ms' (did you mean 'decay_ms'?), "
            "ignored\n");
  EXPECT_EQ(options_.settings.decay_ms, 1000);
  EXPECT_NE(read("Checked=1", "lanemalloc_options")
                .find("lanemalloc_options: unknown option 'Checked' (did you mean 'checked'?)"),
            std::string::npos);
  EXPECT_NE(read("bad_pionter=abort").find("'bad_pointer'?"), std::string::npos);
  EXPECT_NE(read("stat=exit").find("'stats'?"), std::string::npos);
  EXPECT_NE(read("strickt=1").find("'strict'?"), std::string::npos);
  EXPECT_EQ(read("foo=1"), "lanemalloc: LANEMALLOC_OPTIONS: unknown option 'foo', ignored\n");
  EXPECT_NE(read("=1").find("unknown option ''"), std::string::npos);
  EXPECT_NE(read("checkedx=1").find("unknown"), std::string::npos);
  EXPECT_NE(read("check=1").find("unknown"), std::string::npos);
  EXPECT_FALSE(options_.settings.checked);
}

TEST_F(OptionsTest, ABadValueIsOneLineThatSaysWhatIsAllowedAndUsed) {
  const std::string line = read("decay_ms=x");
  EXPECT_EQ(line.find("lanemalloc: LANEMALLOC_OPTIONS: bad value 'x' for 'decay_ms' ("), 0u)
      << line;
  EXPECT_NE(line.find("), using 1000\n"), std::string::npos) << line;
  for (const char* bad :
       {"decay_ms=", "decay_ms", "decay_ms=-2", "decay_ms=-0", "decay_ms=1x", "decay_ms=86400001",
        "decay_ms=99999999999999999999999", "decay_ms= 1", "decay_ms=-", "decay_ms=+1"}) {
    EXPECT_NE(read(bad).find("bad value"), std::string::npos) << bad;
    EXPECT_EQ(options_.settings.decay_ms, 1000) << bad;
  }
  for (const char* bad : {"deferred=0", "deferred=x", "deferred=1048577", "deferred="})
    EXPECT_NE(read(bad).find(" for 'deferred' (1 to 1048576), using 4096\n"), std::string::npos);
  for (const char* bad : {"huge_pages=always", "huge_pages=1"})
    EXPECT_NE(read(bad).find(" for 'huge_pages' (off, auto or on), using off"), std::string::npos);
  EXPECT_EQ(read("checked=yes"),
            "lanemalloc: LANEMALLOC_OPTIONS: bad value 'yes' for 'checked' (0 or 1), using 0\n");
  EXPECT_EQ(read("bad_pointer=abor"),
            "lanemalloc: LANEMALLOC_OPTIONS: bad value 'abor' for 'bad_pointer' (abort, report or "
            "ignore), "
            "using abort\n");
  EXPECT_EQ(
      read("stats=exits"),
      "lanemalloc: LANEMALLOC_OPTIONS: bad value 'exits' for 'stats' (none, exit, signal:NAME or "
      "exit+signal:NAME, of USR1 USR2 HUP ALRM VTALRM PROF WINCH URG), using none\n");
  EXPECT_NE(read("checked=1,checked=11").find("using 1\n"), std::string::npos);
}

TEST_F(OptionsTest, OneBadOptionSpoilsNoOther) {
  EXPECT_EQ(std::string(read("decoy_ms=1,checked=1,decay_ms=x,stats=exit")).find("stats"),
            std::string::npos);
  EXPECT_TRUE(options_.settings.checked);
  EXPECT_TRUE(options_.seeing.stats.at_exit);
}

TEST_F(OptionsTest, StrictStopsAtAComplaintWhereverItStands) {
  read("decoy_ms=1");
  EXPECT_FALSE(reader_.must_stop());
  read("strict=1");
  EXPECT_TRUE(reader_.must_stop());
}

TEST_F(OptionsTest, StrictWithoutAComplaintStopsNothing) {
  read("strict=1,decay_ms=5");
  EXPECT_FALSE(reader_.must_stop());
}

TEST_F(OptionsTest, AnOverlongKeyOrValueIsCutToOneLine) {
  for (const std::string& text :
       {std::string(5000, 'k') + "=1", "decay_ms=" + std::string(5000, '9'),
        "bad_pointer=" + std::string(100000, 'z'), std::string(300, 'k')}) {
    const std::string line = read(text.c_str());
    EXPECT_LT(line.size(), 500u);
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
    EXPECT_EQ(line.back(), '\n');
    EXPECT_NE(line.find(line.find("unknown") != std::string::npos ? "ignored" : "using"),
              std::string::npos)
        << line;
  }
}

}  // namespace
}  // namespace lanemalloc
