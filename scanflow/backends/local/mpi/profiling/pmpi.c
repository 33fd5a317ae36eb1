/* Counts what one rank of an MPI program sends, and how long it is inside MPI. It is compiled for the flavor at hand and
 * loaded before the program's libraries, by MPI's own profiling interface. Fifty times a second, and at the end, a line
 * is added to the file $SCANFLOW_MPI_PROFILE/<rank>: the clock, calls, messages, bytes, wall time and CPU time inside MPI,
 * CPU time of all of the process. Times are in nanoseconds; the clock is CLOCK_MONOTONIC.
 *
 * A collective operation counts as the messages that a rank has to wait for one after the other, and as the bytes that it
 * sends to others. */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static uint64_t calls, messages, bytes, wall, inside;
static uint64_t cost; /* CPU time of looking at the clocks of one call, which is not the program's */
static FILE *out;

static uint64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static void add(uint64_t *to, uint64_t what) { __atomic_fetch_add(to, what, __ATOMIC_RELAXED); }

static void note(void) {
  if (!out) return;
  fprintf(out, "%llu %llu %llu %llu %llu %llu %llu\n", (unsigned long long)now(CLOCK_MONOTONIC),
          (unsigned long long)calls, (unsigned long long)messages, (unsigned long long)bytes,
          (unsigned long long)wall, (unsigned long long)inside, (unsigned long long)now(CLOCK_PROCESS_CPUTIME_ID));
  fflush(out);
}

static void *notes(void *unused) {
  for (;;) {
    usleep(20000);
    note();
  }
  return unused;
}

typedef struct { uint64_t wall, cpu; } Begun;

static Begun enter(void) { return (Begun){now(CLOCK_MONOTONIC), now(CLOCK_THREAD_CPUTIME_ID)}; }

static void leave(Begun begun, uint64_t steps, uint64_t sent) {
  add(&calls, 1);
  add(&messages, steps);
  add(&bytes, sent);
  add(&inside, now(CLOCK_THREAD_CPUTIME_ID) - begun.cpu + cost);
  add(&wall, now(CLOCK_MONOTONIC) - begun.wall);
}

static void begin(void) {
  int rank;
  char path[4096];
  pthread_t thread;
  const char *folder = getenv("SCANFLOW_MPI_PROFILE");
  if (!folder || out) return;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  snprintf(path, sizeof path, "%s/%d", folder, rank);
  uint64_t before = now(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < 1000; i++) leave(enter(), 0, 0);
  cost = (now(CLOCK_THREAD_CPUTIME_ID) - before - inside) / 1000;
  calls = wall = inside = 0;
  out = fopen(path, "w");
  if (!out) return;
  note();
  pthread_create(&thread, NULL, notes, NULL);
  pthread_detach(thread);
}

static uint64_t of(int count, MPI_Datatype type) {
  int size = 0;
  if (count <= 0 || type == MPI_DATATYPE_NULL) return 0;
  PMPI_Type_size(type, &size);
  return (uint64_t)count * size;
}

static int others(MPI_Comm comm) {
  int size = 1;
  PMPI_Comm_size(comm, &size);
  return size - 1;
}

static int depth(MPI_Comm comm) {
  int size = others(comm) + 1, steps = 0;
  while ((1 << steps) < size) steps++;
  return steps;
}

static int away(int to, MPI_Comm comm) {
  int rank = -1;
  PMPI_Comm_rank(comm, &rank);
  return to >= 0 && to != rank;
}

static uint64_t all(const int *counts, MPI_Datatype type, MPI_Comm comm) {
  uint64_t sum = 0;
  int rank, n = others(comm) + 1;
  PMPI_Comm_rank(comm, &rank);
  for (int i = 0; i < n; i++)
    if (i != rank) sum += of(counts[i], type);
  return sum;
}

/* CALL(name, parameters, arguments, messages, bytes) */
#define CALL(...) CALL_(__VA_ARGS__)
#define CALL_(name, parameters, arguments, steps, sent) \
  int MPI_##name parameters {                          \
    Begun begun = enter();                             \
    int code = PMPI_##name arguments;                  \
    leave(begun, steps, sent);                         \
    return code;                                       \
  }

int MPI_Init(int *argc, char ***argv) {
  int code = PMPI_Init(argc, argv);
  begin();
  return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
  int code = PMPI_Init_thread(argc, argv, required, provided);
  begin();
  return code;
}

int MPI_Finalize(void) {
  note();
  return PMPI_Finalize();
}

#define SEND (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), (b, n, t, to, tag, c)
#define ISEND                                                                           \
  (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r), \
      (b, n, t, to, tag, c, r)
#define SENT away(to, c), away(to, c) ? of(n, t) : 0

CALL(Send, SEND, SENT)
CALL(Ssend, SEND, SENT)
CALL(Rsend, SEND, SENT)
CALL(Bsend, SEND, SENT)
CALL(Isend, ISEND, SENT)
CALL(Issend, ISEND, SENT)
CALL(Irsend, ISEND, SENT)
CALL(Start, (MPI_Request * r), (r), 1, 0)
CALL(Startall, (int n, MPI_Request r[]), (n, r), n, 0)
CALL(Recv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status *s), (b, n, t, from, tag, c, s), 0, 0)
CALL(Irecv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r), (b, n, t, from, tag, c, r), 0, 0)
CALL(Sendrecv,
     (const void *b, int n, MPI_Datatype t, int to, int tag, void *b2, int n2, MPI_Datatype t2, int from, int tag2,
      MPI_Comm c, MPI_Status *s),
     (b, n, t, to, tag, b2, n2, t2, from, tag2, c, s), SENT)
CALL(Sendrecv_replace,
     (void *b, int n, MPI_Datatype t, int to, int tag, int from, int tag2, MPI_Comm c, MPI_Status *s),
     (b, n, t, to, tag, from, tag2, c, s), SENT)
CALL(Probe, (int from, int tag, MPI_Comm c, MPI_Status *s), (from, tag, c, s), 0, 0)
CALL(Iprobe, (int from, int tag, MPI_Comm c, int *f, MPI_Status *s), (from, tag, c, f, s), 0, 0)
CALL(Wait, (MPI_Request * r, MPI_Status *s), (r, s), 0, 0)
CALL(Waitall, (int n, MPI_Request r[], MPI_Status s[]), (n, r, s), 0, 0)
CALL(Waitany, (int n, MPI_Request r[], int *i, MPI_Status *s), (n, r, i, s), 0, 0)
CALL(Waitsome, (int n, MPI_Request r[], int *m, int i[], MPI_Status s[]), (n, r, m, i, s), 0, 0)
CALL(Test, (MPI_Request * r, int *f, MPI_Status *s), (r, f, s), 0, 0)
CALL(Testall, (int n, MPI_Request r[], int *f, MPI_Status s[]), (n, r, f, s), 0, 0)
CALL(Testany, (int n, MPI_Request r[], int *i, int *f, MPI_Status *s), (n, r, i, f, s), 0, 0)
CALL(Testsome, (int n, MPI_Request r[], int *m, int i[], MPI_Status s[]), (n, r, m, i, s), 0, 0)

CALL(Barrier, (MPI_Comm c), (c), depth(c), 0)
CALL(Ibarrier, (MPI_Comm c, MPI_Request *r), (c, r), depth(c), 0)
CALL(Bcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), (b, n, t, root, c), depth(c), others(c) ? of(n, t) : 0)
CALL(Reduce, (const void *b, void *b2, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c), (b, b2, n, t, o, root, c),
     depth(c), others(c) ? of(n, t) : 0)
CALL(Allreduce, (const void *b, void *b2, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (b, b2, n, t, o, c), depth(c),
     others(c) ? 2 * of(n, t) : 0)
CALL(Iallreduce, (const void *b, void *b2, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *r),
     (b, b2, n, t, o, c, r), depth(c), others(c) ? 2 * of(n, t) : 0)
CALL(Scan, (const void *b, void *b2, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (b, b2, n, t, o, c), depth(c),
     others(c) ? of(n, t) : 0)
CALL(Exscan, (const void *b, void *b2, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (b, b2, n, t, o, c), depth(c),
     others(c) ? of(n, t) : 0)
CALL(Gather, (const void *b, int n, MPI_Datatype t, void *b2, int n2, MPI_Datatype t2, int root, MPI_Comm c),
     (b, n, t, b2, n2, t2, root, c), depth(c), others(c) ? of(n, t) : 0)
CALL(Gatherv,
     (const void *b, int n, MPI_Datatype t, void *b2, const int n2[], const int d[], MPI_Datatype t2, int root, MPI_Comm c),
     (b, n, t, b2, n2, d, t2, root, c), depth(c), others(c) ? of(n, t) : 0)
CALL(Scatter, (const void *b, int n, MPI_Datatype t, void *b2, int n2, MPI_Datatype t2, int root, MPI_Comm c),
     (b, n, t, b2, n2, t2, root, c), depth(c), others(c) ? of(n2, t2) : 0)
CALL(Scatterv,
     (const void *b, const int n[], const int d[], MPI_Datatype t, void *b2, int n2, MPI_Datatype t2, int root, MPI_Comm c),
     (b, n, d, t, b2, n2, t2, root, c), depth(c), others(c) ? of(n2, t2) : 0)
CALL(Allgather, (const void *b, int n, MPI_Datatype t, void *b2, int n2, MPI_Datatype t2, MPI_Comm c),
     (b, n, t, b2, n2, t2, c), depth(c), others(c) * of(n2, t2))
CALL(Allgatherv,
     (const void *b, int n, MPI_Datatype t, void *b2, const int n2[], const int d[], MPI_Datatype t2, MPI_Comm c),
     (b, n, t, b2, n2, d, t2, c), depth(c), all(n2, t2, c))
CALL(Alltoall, (const void *b, int n, MPI_Datatype t, void *b2, int n2, MPI_Datatype t2, MPI_Comm c),
     (b, n, t, b2, n2, t2, c), others(c), others(c) * of(n2, t2))
CALL(Alltoallv,
     (const void *b, const int n[], const int d[], MPI_Datatype t, void *b2, const int n2[], const int d2[],
      MPI_Datatype t2, MPI_Comm c),
     (b, n, d, t, b2, n2, d2, t2, c), others(c), all(n2, t2, c))
CALL(Ialltoall,
     (const void *b, int n, MPI_Datatype t, void *b2, int n2, MPI_Datatype t2, MPI_Comm c, MPI_Request *r),
     (b, n, t, b2, n2, t2, c, r), others(c), others(c) * of(n2, t2))
CALL(Reduce_scatter, (const void *b, void *b2, const int n[], MPI_Datatype t, MPI_Op o, MPI_Comm c),
     (b, b2, n, t, o, c), depth(c), all(n, t, c))
CALL(Reduce_scatter_block, (const void *b, void *b2, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (b, b2, n, t, o, c),
     depth(c), others(c) * of(n, t))
CALL(Put,
     (const void *b, int n, MPI_Datatype t, int to, MPI_Aint at, int n2, MPI_Datatype t2, MPI_Win w),
     (b, n, t, to, at, n2, t2, w), 1, of(n, t))
CALL(Get, (void *b, int n, MPI_Datatype t, int to, MPI_Aint at, int n2, MPI_Datatype t2, MPI_Win w),
     (b, n, t, to, at, n2, t2, w), 1, of(n, t))
CALL(Accumulate,
     (const void *b, int n, MPI_Datatype t, int to, MPI_Aint at, int n2, MPI_Datatype t2, MPI_Op o, MPI_Win w),
     (b, n, t, to, at, n2, t2, o, w), 1, of(n, t))
CALL(Win_fence, (int a, MPI_Win w), (a, w), 1, 0)
CALL(Win_unlock, (int rank, MPI_Win w), (rank, w), 1, 0)
