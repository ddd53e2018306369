// A PJRT plugin for tests: the plugin named at compile time (-DLIBRARY=\"...\"), under the platform name "fpga".
//
// jax and torch_xla then have no knowledge of the platform: neither lowering rules nor custom calls are registered for it.
// The structs below repeat the part of the PJRT C API that is needed. The API only appends to them.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

struct ClientName {
  size_t struct_size;
  void* extension;
  void* client;
  const char* name;  // result
  size_t name_size;
};

struct Api {
  size_t struct_size;
  void* extensions;
  size_t version_size;
  void* version_extension;
  int32_t major, minor;
  void* before[12];  // PJRT_Error_Destroy .. PJRT_Client_Destroy
  void* (*client_platform_name)(ClientName*);
};

constexpr int32_t kMajor = 0;
constexpr char kName[] = "fpga";

void* platform_name(ClientName* args) {
  args->name = kName;
  args->name_size = sizeof(kName) - 1;
  return nullptr;  // no error
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const void* GetPjrtApi() {
  alignas(16) static char storage[1 << 14];
  void* library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  auto* find = library ? reinterpret_cast<const Api* (*)()>(dlsym(library, "GetPjrtApi")) : nullptr;
  const Api* wrapped = find ? find() : nullptr;
  if (wrapped == nullptr || wrapped->major != kMajor || wrapped->struct_size > sizeof storage) {
    std::fprintf(stderr, "foreign plugin: cannot use %s: %s\n", LIBRARY, library ? "unknown PJRT version" : dlerror());
    return nullptr;
  }
  std::memcpy(storage, wrapped, wrapped->struct_size);
  auto* own = reinterpret_cast<Api*>(storage);
  own->client_platform_name = platform_name;
  return storage;
}
