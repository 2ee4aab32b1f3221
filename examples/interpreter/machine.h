// Machine: an interpreter, one for each thread. As in MoarVM, frames lie in memory of a fixed-size
// allocator rather than on the C stack; so do environments, pairs and closures, which count their
// references. Everything is given back with its size.
// Called by: interpreter.cpp. Threads: one at a time; the program's functions may be replaced
// meanwhile, and the code that a frame has found stays whole until the machine is between two runs.
#pragma once

#include "program.h"

// A number, whose lowest bit is set, or a reference to an Object; 0 is nil.
using Value = uint64_t;
inline Value number(int64_t n) { return static_cast<Value>(n) << 1 | 1; }
inline int64_t number_in(Value v) { return static_cast<int64_t>(v) >> 1; }

// A pair: head, tail. A closure: function, environment. An environment: the variables, then the
// environment around it.
struct Object {
  uint32_t references;
  uint32_t size;
  Value slots[];
};

struct Frame {
  Frame* caller;
  const Code* code;
  Object* environment;
  uint32_t at;
  uint32_t top;
  Value stack[];
};

template <class Memory>
class Machine {
 public:
  Machine(Program<Memory>& program, Memory& memory) : program_(program), memory_(memory) {}

  // Runs a function of numbers and returns its result, a number. There must be no quiescent state
  // meanwhile.
  int64_t run(Function& function, const std::vector<int64_t>& arguments) {
    Object* environment = make(static_cast<uint32_t>(arguments.size()) + 1);
    for (size_t i = 0; i < arguments.size(); ++i) environment->slots[i] = number(arguments[i]);
    environment->slots[arguments.size()] = 0;
    enter(function, environment);
    return number_in(go());
  }
  uint64_t allocations() const { return allocations_; }

 private:
  static bool is_object(Value v) { return v != 0 && (v & 1) == 0; }
  static Object* object(Value v) { return reinterpret_cast<Object*>(v); }
  static Value reference(Object* o) { return reinterpret_cast<Value>(o); }
  static Value keep(Value v) {
    if (is_object(v)) ++object(v)->references;
    return v;
  }

  // Small objects are allocated in line if the memory's functions are in line.
  void* take(size_t size) {
    ++allocations_;
    void* memory = memory_.take(size);
    if (memory == nullptr) std::perror("interpreter"), std::exit(1);
    return memory;
  }
  Object* make(uint32_t slots) {
    auto* o = static_cast<Object*>(take(sizeof(Object) + slots * sizeof(Value)));
    o->references = 1;
    o->size = slots;
    return o;
  }
  void release(Value v) {
    if (is_object(v) && --object(v)->references == 0) give(object(v));
  }
  // The loop releases the last slot, so that a long list needs no stack.
  [[gnu::noinline]] void give(Object* o) {
    for (;;) {
      for (uint32_t i = 0; i + 1 < o->size; ++i) release(o->slots[i]);
      const Value last = o->slots[o->size - 1];
      memory_.give(o, sizeof(Object) + o->size * sizeof(Value));
      if (!is_object(last) || --object(last)->references != 0) return;
      o = object(last);
    }
  }

  static size_t bytes_of(const Code& code) { return sizeof(Frame) + code.stack * sizeof(Value); }
  void enter(Function& function, Object* environment) {
    const Code* code = function.code.load(std::memory_order_acquire);
    auto* frame = static_cast<Frame*>(take(bytes_of(*code)));
    *frame = {frame_, code, environment, 0, 0};
    frame_ = frame;
  }
  void leave() {
    Frame* frame = frame_;
    frame_ = frame->caller;
    release(reference(frame->environment));
    memory_.give(frame, bytes_of(*frame->code));
  }

  void push(Value v) { frame_->stack[frame_->top++] = v; }
  Value pop() { return frame_->stack[--frame_->top]; }
  int64_t pop_number() { return number_in(pop()); }
  // Makes the environment of a call: n arguments from the stack, and a slot for the environment
  // around it.
  Object* arguments(uint32_t n) {
    Object* environment = make(n + 1);
    for (uint32_t i = n; i-- > 0;) environment->slots[i] = pop();
    return environment;
  }
  Value variable(int depth, int index) const {
    const Object* environment = frame_->environment;
    while (depth-- > 0) environment = object(environment->slots[environment->size - 1]);
    return environment->slots[index];
  }
  void push_part(int index) {
    const Value whole = pop();
    push(keep(object(whole)->slots[index]));
    release(whole);
  }

  Value go() {
    for (;;) {
      const int16_t* text = frame_->code->text + frame_->at;
      const auto operand = [text](int i) { return text[i]; };
      switch (static_cast<Op>(text[0])) {
        case Op::integer:
          push(number(operand(1)));
          frame_->at += 2;
          break;
        case Op::nil:
          push(0);
          frame_->at += 1;
          break;
        case Op::local:
          push(keep(variable(operand(1), operand(2))));
          frame_->at += 3;
          break;
        case Op::own:
          push(keep(frame_->environment->slots[operand(1)]));
          frame_->at += 3;
          break;
        case Op::pair: {
          Object* pair = make(2);
          pair->slots[1] = pop();
          pair->slots[0] = pop();
          push(reference(pair));
          frame_->at += 1;
          break;
        }
        case Op::head:
          push_part(0);
          frame_->at += 1;
          break;
        case Op::tail:
          push_part(1);
          frame_->at += 1;
          break;
        case Op::is_nil: {
          const Value v = pop();
          push(number(v == 0));
          release(v);
          frame_->at += 1;
          break;
        }
        case Op::jump:
          frame_->at = static_cast<uint32_t>(operand(1));
          break;
        case Op::unless:
          frame_->at = pop_number() == 0 ? static_cast<uint32_t>(operand(1)) : frame_->at + 2;
          break;
        case Op::add_integer:
          push(number(pop_number() + operand(1)));
          frame_->at += 3;
          break;
        case Op::closure: {
          Object* closure = make(2);
          closure->slots[0] = number(operand(1));
          closure->slots[1] = keep(reference(frame_->environment));
          push(reference(closure));
          frame_->at += 2;
          break;
        }
        case Op::call: {
          const auto n = static_cast<uint32_t>(operand(1));
          Object* environment = arguments(n);
          const Value closure = pop();
          environment->slots[n] = keep(object(closure)->slots[1]);
          const auto function = static_cast<size_t>(number_in(object(closure)->slots[0]));
          release(closure);
          frame_->at += 2;
          enter(program_.at(function), environment);
          break;
        }
        case Op::invoke:
        case Op::loop: {
          const auto n = static_cast<uint32_t>(operand(2));
          Object* environment = arguments(n);
          environment->slots[n] = 0;
          Function& function = program_.at(static_cast<size_t>(operand(1)));
          frame_->at += 3;
          if (static_cast<Op>(text[0]) == Op::loop) leave();
          enter(function, environment);
          break;
        }
        case Op::give: {
          const Value result = pop();
          leave();
          if (frame_ == nullptr) return result;
          push(result);
          break;
        }
        default:
          calculate(static_cast<Op>(text[0]));
          frame_->at += 1;
      }
    }
  }

  void calculate(Op op) {
    const int64_t b = pop_number(), a = pop_number();
    switch (op) {
      case Op::add:
        return push(number(a + b));
      case Op::subtract:
        return push(number(a - b));
      case Op::multiply:
        return push(number(a * b));
      case Op::modulo:
        return push(number(a % b));
      case Op::equal:
        return push(number(a == b));
      case Op::less:
        return push(number(a < b));
      default:
        std::fprintf(stderr, "interpreter: no operation %d\n", static_cast<int>(op));
        std::exit(1);
    }
  }

  Program<Memory>& program_;
  Memory& memory_;
  Frame* frame_ = nullptr;
  uint64_t allocations_ = 0;
};
