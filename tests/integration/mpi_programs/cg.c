/* Conjugate gradients without preconditioning over a 27-point operator in compressed rows, as MiniFE has them: planes of
 * the box are dealt to ranks; each iteration exchanges one plane with each neighbour and reduces two sums. Arguments: the
 * side of a rank's box, and for how many seconds to iterate. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size, n, plane;
static long rows;

static double dot(const double *a, const double *b) {
  double own = 0, sum;
  for (long i = 0; i < rows; i++) own += a[i] * b[i];
  MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

/* A plane of the neighbours lies before and behind the own ones. */
static void exchange(double *p) {
  int below = rank ? rank - 1 : MPI_PROC_NULL, above = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
  MPI_Sendrecv(p + plane, plane, MPI_DOUBLE, below, 0, p + plane + rows, plane, MPI_DOUBLE, above, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(p + rows, plane, MPI_DOUBLE, above, 1, p, plane, MPI_DOUBLE, below, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  n = argc > 1 ? atoi(argv[1]) : 32;
  double limit = argc > 2 ? atof(argv[2]) : 1;
  plane = n * n;
  rows = (long)plane * n;
  long *first = malloc((rows + 1) * sizeof *first), used = 0;
  int *column = malloc(rows * 27 * sizeof *column);
  double *value = malloc(rows * 27 * sizeof *value);
  double *x = calloc(rows, sizeof *x), *r = malloc(rows * sizeof *r), *q = malloc(rows * sizeof *q);
  double *p = calloc(rows + 2 * plane, sizeof *p);
  for (long row = 0; row < rows; row++) {
    int i = row % n, j = row / n % n, k = row / plane;
    first[row] = used;
    for (int dk = -1; dk <= 1; dk++)
      for (int dj = -1; dj <= 1; dj++)
        for (int di = -1; di <= 1; di++) {
          int outside = i + di < 0 || i + di >= n || j + dj < 0 || j + dj >= n;
          if (outside || (!rank && k + dk < 0) || (rank + 1 == size && k + dk >= n)) continue;
          column[used] = plane + row + dk * plane + dj * n + di;
          value[used++] = di || dj || dk ? -1 : 27;
        }
  }
  first[rows] = used;
  for (long i = 0; i < rows; i++) r[i] = p[plane + i] = 1;
  double rr = dot(r, r), start = MPI_Wtime(), end;
  int iterations = 0, done = 0;
  while (!done) {
    exchange(p);
    for (long row = 0; row < rows; row++) {
      double sum = 0;
      for (long at = first[row]; at < first[row + 1]; at++) sum += value[at] * p[column[at]];
      q[row] = sum;
    }
    double alpha = rr / dot(p + plane, q);
    for (long i = 0; i < rows; i++) {
      x[i] += alpha * p[plane + i];
      r[i] -= alpha * q[i];
    }
    double next = dot(r, r), beta = next / rr;
    rr = next;
    if (++iterations % 50 == 0 || rr < 1e-20) { /* begin again, so that it lasts as long as was asked for */
      for (long i = 0; i < rows; i++) x[i] = 0, r[i] = p[plane + i] = 1;
      rr = dot(r, r);
    } else {
      for (long i = 0; i < rows; i++) p[plane + i] = r[i] + beta * p[plane + i];
    }
    end = MPI_Wtime();
    done = end - start > limit;
    MPI_Bcast(&done, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  if (!rank) printf("%d iterations in %.1f s\n", iterations, end - start);
  MPI_Finalize();
  return 0;
}
