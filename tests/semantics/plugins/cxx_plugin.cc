// A C++ plugin that a C program opens by dlopen, RTLD_LOCAL: libstdc++ comes with it and is not in
// the global scope.
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {
struct Static {
  std::vector<std::string> names{"static", "constructor", std::string(300, 'n')};
  ~Static() { names.assign(50, std::string(100, 'd')); }
};
Static static_object;
thread_local std::string per_thread = std::string(200, 'p');
int handler_calls;
}  // namespace

extern "C" {
// Objects made here may be freed by the caller.
char* plugin_text() {
  char* text = new char[static_object.names[2].size() + per_thread.size() + 1];
  std::strcpy(text, (static_object.names[2] + per_thread).c_str());
  return text;
}

void plugin_free(char* text) { delete[] text; }

// Returns 0 if a failed new throws bad_alloc that is caught here, and a nothrow new gives null.
int plugin_bad_alloc(std::size_t size) {
  try {
    char* object = static_cast<char*>(::operator new(size));
    object[0] = 1;
    return 1;
  } catch (const std::bad_alloc&) {
  }
  return ::operator new(size, std::nothrow) == nullptr ? 0 : 2;
}

int plugin_new_handler(std::size_t size) {
  handler_calls = 0;
  std::set_new_handler([] {
    if (++handler_calls % 4 == 0) throw std::bad_alloc();
  });
  int result = plugin_bad_alloc(size);
  std::set_new_handler(nullptr);
  return result ? -result : handler_calls;
}

int plugin_threads() {
  std::vector<std::thread> threads;
  int lengths[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; i++)
    threads.emplace_back([&lengths, i] { lengths[i] = static_cast<int>(per_thread.size()); });
  for (std::thread& thread : threads) thread.join();
  return lengths[0] + lengths[1] + lengths[2] + lengths[3];
}
}
