// Operands, results and scratch lie each in an allocation of exactly their size, scratch in a new
// one for every call. What is allocated is NaN until it is written, and so are dropped blocks.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

__attribute__((noinline)) void* allocate(size_t size, size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
  return std::memset(memory, 0xff, size);
}
__attribute__((noinline)) void release(void* memory) { std::free(memory); }
void* operator new(size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
