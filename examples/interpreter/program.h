// Program: bytecode, and the assembler that makes it from text. Code units are 16 bits: an
// operation, then its operands.
// Called by: interpreter.cpp. Threads: functions may be replaced while other threads run them
// (Function::code).
//
// Text: `function NAME PARAMETERS STACK`, then operations, one per line, with `LABEL:` lines
// between, and `#` before a remark. STACK tells how much the stack must hold; the assembler does
// not find it out.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#define OPERATIONS(X)                                                                           \
  X(integer, 1) /* value: pushes it */                                                          \
  X(nil, 0)                                                                                     \
  X(local,                                                                                      \
    2) /* depth, index: pushes a variable of this environment, or of one that lies around it */ \
  X(pair, 0) /* head tail -> pair */                                                            \
  X(head, 0)                                                                                    \
  X(tail, 0)                                                                                    \
  X(is_nil, 0)                                                                                  \
  X(add, 0)                                                                                     \
  X(subtract, 0)                                                                                \
  X(multiply, 0)                                                                                \
  X(modulo, 0)                                                                                  \
  X(equal, 0)                                                                                   \
  X(less, 0)                                                                                    \
  X(jump, 1)                                                                                    \
  X(unless, 1)      /* target: jumps if the value is 0 */                                       \
  X(closure, 1)     /* function: pushes it, with this environment around it */                  \
  X(call, 1)        /* n: closure and n arguments -> result */                                  \
  X(invoke, 2)      /* function, n: the same with a function that needs no environment */       \
  X(loop, 2)        /* function, n: the same, and its result is this function's */              \
  X(give, 0)        /* returns the value */                                                     \
  X(own, 2)         /* index, unused: as local 0 index; made by rewritten() */                  \
  X(add_integer, 2) /* value, unused: as integer value, add; made by rewritten() */

enum class Op : int16_t {
#define X(name, operands) name,
  OPERATIONS(X)
#undef X
};

struct Code {
  uint32_t bytes;  // of the whole Code
  uint16_t parameters;
  uint16_t stack;
  uint32_t units;
  bool is_faster;
  int16_t text[];
};

struct Function {
  std::string name;
  std::atomic<Code*> code{nullptr};
};

template <class Memory>
class Program {
 public:
  Program(const char* text, Memory& memory) : memory_(memory) { assemble(text); }
  Program(const Program&) = delete;

  Function& at(size_t i) { return *functions_[i]; }
  Function& named(const std::string& name) {
    return *functions_[static_cast<size_t>(number_of(name))];
  }
  size_t size() const { return functions_.size(); }

  // Returns the same code with faster forms if there are some, or with the plain ones again.
  // Returns null if there is no memory.
  Code* rewritten(const Code& old) {
    Code* code = make(old.parameters, old.stack, old.units);
    if (code == nullptr) return nullptr;
    code->is_faster = !old.is_faster;
    for (uint32_t i = 0, before = 0; i < old.units; before = i, i += 1 + operands(old.text[i]))
      rewrite(old, i, before, *code);
    return code;
  }
  void give(Code* code) { memory_.give(code, code->bytes); }

 private:
  static constexpr int kOperands[] = {
#define X(name, operands) operands,
      OPERATIONS(X)
#undef X
  };
  static constexpr const char* kNames[] = {
#define X(name, operands) #name,
      OPERATIONS(X)
#undef X
  };
  static uint32_t operands(int16_t op) { return static_cast<uint32_t>(kOperands[op]); }
  static bool is(int16_t unit, Op op) { return unit == static_cast<int16_t>(op); }

  // Each form is as long as what it stands for, so targets stay. No target lies between an integer
  // and its add.
  static void rewrite(const Code& old, uint32_t i, uint32_t before, Code& code) {
    const int16_t* from = old.text + i;
    int16_t* to = code.text + i;
    for (uint32_t k = 0; k <= operands(*from); ++k) to[k] = from[k];
    if (code.is_faster && is(*from, Op::local) && from[1] == 0) {
      to[0] = static_cast<int16_t>(Op::own);
      to[1] = from[2];
    } else if (code.is_faster && is(*from, Op::add) && is(old.text[before], Op::integer)) {
      code.text[before] = static_cast<int16_t>(Op::add_integer);  // its second operand is this unit
    } else if (!code.is_faster && is(*from, Op::own)) {
      to[0] = static_cast<int16_t>(Op::local);
      to[1] = 0;
      to[2] = from[1];
    } else if (!code.is_faster && is(*from, Op::add_integer)) {
      to[0] = static_cast<int16_t>(Op::integer);
      to[2] = static_cast<int16_t>(Op::add);
    }
  }

  [[noreturn]] static void fail(const std::string& what) {
    std::fprintf(stderr, "assembler: %s\n", what.c_str());
    std::exit(1);
  }
  int16_t number_of(const std::string& name) {
    for (size_t i = 0; i < functions_.size(); ++i)
      if (functions_[i]->name == name) return static_cast<int16_t>(i);
    functions_.push_back(new Function{name, {}});
    return static_cast<int16_t>(functions_.size() - 1);
  }
  Code* make(uint16_t parameters, uint16_t stack, uint32_t units) {
    const size_t bytes = sizeof(Code) + units * sizeof(int16_t);
    auto* code = static_cast<Code*>(memory_.take(bytes));
    if (code != nullptr) *code = {static_cast<uint32_t>(bytes), parameters, stack, units, false};
    return code;
  }

  struct Draft {
    std::string name;
    int parameters = 0, stack = 0;
    std::vector<int16_t> units;
    std::map<std::string, size_t> labels;
    std::vector<std::pair<size_t, std::string>> targets;
  };
  void finish(Draft& draft) {
    if (draft.name.empty()) return;
    for (auto& [at, label] : draft.targets) {
      if (draft.labels.count(label) == 0) fail(draft.name + ": no label " + label);
      draft.units[at] = static_cast<int16_t>(draft.labels[label]);
    }
    Code* code = make(static_cast<uint16_t>(draft.parameters), static_cast<uint16_t>(draft.stack),
                      static_cast<uint32_t>(draft.units.size()));
    if (code == nullptr) fail("no memory");
    for (size_t i = 0; i < draft.units.size(); ++i) code->text[i] = draft.units[i];
    named(draft.name).code.store(code);
    draft = {};
  }
  void add(Draft& draft, const std::string& word, std::istringstream& line) {
    size_t op = 0;
    while (op < std::size(kNames) && word != kNames[op]) ++op;
    if (op == std::size(kNames)) fail(draft.name + ": no operation " + word);
    draft.units.push_back(static_cast<int16_t>(op));
    const bool jumps = word == "jump" || word == "unless";
    const bool names_function = word == "closure" || word == "invoke" || word == "loop";
    for (int i = 0; i < kOperands[op]; ++i) {
      std::string operand;
      if (!(line >> operand)) fail(draft.name + ": " + word + " needs more");
      if (jumps) draft.targets.push_back({draft.units.size(), operand});
      draft.units.push_back(jumps                      ? int16_t{0}
                            : names_function && i == 0 ? number_of(operand)
                                                       : static_cast<int16_t>(std::stoi(operand)));
    }
  }
  void assemble(const char* text) {
    std::istringstream lines(text);
    Draft draft;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string word;
      if (!(words >> word) || word[0] == '#') continue;
      if (word == "function") {
        finish(draft);
        if (!(words >> draft.name >> draft.parameters >> draft.stack)) fail("function: " + line);
      } else if (word.back() == ':') {
        draft.labels[word.substr(0, word.size() - 1)] = draft.units.size();
      } else {
        add(draft, word, words);
      }
    }
    finish(draft);
    for (Function* function : functions_)
      if (function->code.load() == nullptr) fail("no function " + function->name);
  }

  Memory& memory_;
  std::vector<Function*> functions_;  // as long as the process
};
