/* NVML's surface as far as it is read here: two GPUs, of which the second is too old to count its energy. The first one's
   counter, in millijoules, stands in the file that FAKE_NVML_MILLIJOULES names. cc -shared -fPIC -o libfake.so nvml.c */
#include <stdio.h>
#include <stdlib.h>

int nvmlInit_v2(void) { return getenv("FAKE_NVML_MILLIJOULES") ? 0 : 9; /* NVML_ERROR_DRIVER_NOT_LOADED */ }

int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int number, void **device) { *device = (void *)(unsigned long)(number + 1); return 0; }

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy)
{
    FILE *file;
    int read;
    if ((unsigned long)device != 1) return 3; /* NVML_ERROR_NOT_SUPPORTED */
    file = fopen(getenv("FAKE_NVML_MILLIJOULES"), "r");
    if (!file) return 999;
    read = fscanf(file, "%llu", energy);
    fclose(file);
    return read == 1 ? 0 : 999;
}
