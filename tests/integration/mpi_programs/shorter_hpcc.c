/* Preloaded, leaves out what HPCC runs before the section that is looked at: the first REFUSED parts of RandomAccess,
   each of which it skips where it gets no memory for its table (sizes that are powers of two, as no other is), and,
   WITHOUT_DGEMM, multiplying. */
#include <stddef.h>

void *__libc_malloc(size_t size);

void *malloc(size_t size) {
  static int refused;
  if (size >= 1 << 20 && !(size & (size - 1)) && refused < REFUSED) {
    ++refused;
    return NULL;
  }
  return __libc_malloc(size);
}

#ifdef WITHOUT_DGEMM
void cblas_dgemm(void) {}
#endif
