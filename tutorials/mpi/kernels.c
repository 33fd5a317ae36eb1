/* The five kinds of program of the thesis' experiments, small: mpicc -O2 -o kernels kernels.c -lm
 *
 *   dgemm   each rank multiplies its own matrices: the CPU bounds it
 *   stream  each rank adds vectors that no cache holds: the memory does
 *   minife  each rank sweeps over a grid, and all sum a number after each sweep: the memory
 *   ring    all ranks pass blocks around: the network
 *   fft     each rank sends a part of its data to each other one, and computes on what it got: the network
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *vector(size_t n, double value) {
  double *v = malloc(n * sizeof *v);
  if (!v) MPI_Abort(MPI_COMM_WORLD, 2);
  for (size_t i = 0; i < n; i++) v[i] = value + (double)i / n;
  return v;
}

static double dgemm(int rounds) {
  enum { N = 120 };
  double *a = vector(N * N, 1), *b = vector(N * N, 2), *c = vector(N * N, 0);
  for (int r = 0; r < rounds; r++)
    for (int i = 0; i < N; i++)
      for (int k = 0; k < N; k++)
        for (int j = 0; j < N; j++) c[i * N + j] += a[i * N + k] * b[k * N + j];
  return c[N];
}

static double stream(int rounds) {
  const size_t n = 1 << 20;
  double *a = vector(n, 1), *b = vector(n, 2), *c = vector(n, 0);
  for (int r = 0; r < rounds; r++)
    for (size_t i = 0; i < n; i++) a[i] = b[i] + 3.0 * c[i] + r;
  return a[n / 2];
}

static double minife(int rounds) {
  const size_t n = 1 << 20;
  double *x = vector(n, 1), *y = vector(n, 0), own, all = 0;
  for (int r = 0; r < rounds; r++) {
    own = 0;
    for (size_t i = 1; i + 1 < n; i++) {
      y[i] = 2 * x[i] - x[i - 1] / 2 - x[i + 1] / 2;
      own += y[i] * x[i];
    }
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  }
  return all;
}

static double ring(int rounds, int rank, int size) {
  const int n = 1 << 15;
  double *out = vector(n, rank), *in = vector(n, 0);
  for (int r = 0; r < rounds; r++)
    MPI_Sendrecv(out, n, MPI_DOUBLE, (rank + 1) % size, 0, in, n, MPI_DOUBLE, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return in[0];
}

static double fft(int rounds, int size) {
  const int each = 1 << 13;
  double *out = vector((size_t)each * size, 1), *in = vector((size_t)each * size, 0);
  for (int r = 0; r < rounds; r++) {
    MPI_Alltoall(out, each, MPI_DOUBLE, in, each, MPI_DOUBLE, MPI_COMM_WORLD);
    for (size_t i = 0; i < (size_t)each * size; i++) out[i] = sqrt(in[i] + 1);
  }
  return out[0];
}

int main(int argc, char **argv) {
  const char *kernel = "dgemm";
  int rounds = 10, rank, size;
  double found = 0, start;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--kernel")) kernel = argv[i + 1];
    if (!strcmp(argv[i], "--rounds")) rounds = atoi(argv[i + 1]);
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Barrier(MPI_COMM_WORLD);
  start = MPI_Wtime();
  if (!strcmp(kernel, "dgemm")) found = dgemm(rounds);
  else if (!strcmp(kernel, "stream")) found = stream(rounds);
  else if (!strcmp(kernel, "minife")) found = minife(rounds);
  else if (!strcmp(kernel, "ring")) found = ring(rounds, rank, size);
  else if (!strcmp(kernel, "fft")) found = fft(rounds, size);
  else {
    fprintf(stderr, "kernel '%s' is none of dgemm, stream, minife, ring, fft\n", kernel);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) printf("%s: %d ranks, %d rounds, %.3f s (%g)\n", kernel, size, rounds, MPI_Wtime() - start, found);
  MPI_Finalize();
  return 0;
}
