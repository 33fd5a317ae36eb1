/* Computes pi: each rank adds up its part of the integral, rank 0 prints the sum. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  long n = argc > 1 ? atol(argv[1]) : 100000000;
  int rank, size;
  double part = 0, pi = 0;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (long i = rank; i < n; i += size) {
    double x = (i + 0.5) / n;
    part += 4 / (1 + x * x);
  }
  MPI_Reduce(&part, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("pi is %.6f\n", pi / n);
  return MPI_Finalize();
}
