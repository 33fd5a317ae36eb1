/* A stand-in for NVIDIA's libnvidia-ml.so.1: what the file that NVML_STUB names says, read anew at every call.

   driver VERSION
   gpu UUID TOTAL USED BUS MIG FAULT NAME...      FAULT: an nvmlReturn_t that its functions return; 0: none
   part UUID TOTAL USED NAME...                   a MIG instance of the last gpu
   load BUSY POWER ENERGY                         of the last gpu: percent, mW, mJ; not there: it does not say
   process PID BYTES                              on the last gpu or part; BYTES of -1: not available
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9, MAX = 64 };
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    char uuid[80], bus[32], name[96];
    unsigned long long total, used;
    int mig, fault, parent, processes, has_load;
    unsigned busy, power;
    unsigned long long energy;
    Process process[MAX];
} Entry;
static Entry entries[MAX];
static int n_entries;
static char driver[80];

static int load(void) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    n_entries = 0;
    if (!file) return NOT_LOADED;
    while (fgets(line, sizeof line, file) && n_entries < MAX) {
        Entry *entry = &entries[n_entries];
        unsigned pid; long long bytes;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "driver %79s", driver) == 1) continue;
        if (sscanf(line, "process %u %lld", &pid, &bytes) == 2 && n_entries) {
            Entry *last = &entries[n_entries - 1];
            last->process[last->processes++] = (Process){pid, (unsigned long long)bytes, 0, 0};
            continue;
        }
        if (n_entries && sscanf(line, "load %u %u %llu", &entry[-1].busy, &entry[-1].power, &entry[-1].energy) == 3) {
            entry[-1].has_load = 1;
            continue;
        }
        memset(entry, 0, sizeof *entry);
        entry->parent = -1;
        if (sscanf(line, "gpu %79s %llu %llu %31s %d %d %95[^\n]", entry->uuid, &entry->total, &entry->used, entry->bus,
                   &entry->mig, &entry->fault, entry->name) == 7) { n_entries++; continue; }
        if (sscanf(line, "part %79s %llu %llu %95[^\n]", entry->uuid, &entry->total, &entry->used, entry->name) == 4) {
            for (entry->parent = n_entries - 1; entries[entry->parent].parent >= 0; entry->parent--) ;
            n_entries++;
        }
    }
    fclose(file);
    return OK;
}

static Entry *get(void *handle) {
    long index = (long)handle - 1;
    return load() == OK && index >= 0 && index < n_entries ? &entries[index] : NULL;
}
static int find(int parent, int wanted) {
    for (int index = 0, seen = 0; index < n_entries; index++)
        if (entries[index].parent == parent && seen++ == wanted) return index;
    return -1;
}
#define ENTRY(handle) Entry *entry = get(handle); if (!entry) return INVALID; if (entry->fault) return entry->fault

int nvmlInitWithFlags(unsigned flags) { (void)flags; return load(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { int code = load(); snprintf(text, size, "%s", driver); return code; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = load();
    *count = 0;
    for (int index = 0; index < n_entries; index++) *count += entries[index].parent < 0;
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **handle) {
    int index = load() == OK ? find(-1, (int)number) : -1;
    if (index < 0) return INVALID;
    *handle = (void *)(long)(index + 1);
    return OK;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    Entry *entry = get(handle);
    if (!entry) return INVALID;
    snprintf(text, size, "%s", entry->uuid);
    return OK;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    ENTRY(handle);
    snprintf(text, size, "%s", entry->name);
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    ENTRY(handle);
    if (!entry->total) return UNSUPPORTED;
    memory[0] = entry->total, memory[1] = entry->total - entry->used, memory[2] = entry->used;
    return OK;
}
#define LOAD(handle) ENTRY(handle); if (!entry->has_load) return UNSUPPORTED
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) { LOAD(handle); rates[0] = entry->busy; rates[1] = 0; return OK; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *power) { LOAD(handle); *power = entry->power; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *energy) { LOAD(handle); *energy = entry->energy; return OK; }
int nvmlDeviceGetPciInfo_v3(void *handle, char *info) {
    ENTRY(handle);
    memset(info, 0, 68);
    strcpy(info + 36, entry->bus);
    return OK;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) {
    ENTRY(handle);
    if (entry->mig < 0) return UNSUPPORTED;
    *now = *later = (unsigned)entry->mig;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { ENTRY(handle); *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned number, void **part) {
    ENTRY(handle);
    int index = find((int)(entry - entries), (int)number);
    if (index < 0) return NOT_FOUND;
    *part = (void *)(long)(index + 1);
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *processes) {
    ENTRY(handle);
    unsigned room = *count;
    *count = (unsigned)entry->processes;
    if (room < *count) return TOO_SMALL;
    memcpy(processes, entry->process, *count * sizeof(Process));
    return OK;
}
