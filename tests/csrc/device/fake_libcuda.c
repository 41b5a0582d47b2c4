/*
 * fake_libcuda.c - a CUDA driver that only loads machine code, for tests: strict.
 *
 * The environment says what it is: FAKE_CUDA_VERSION, FAKE_CUDA_CAPABILITIES ("90,80"),
 * FAKE_CUDA_FAIL_AT, the number of the call that fails. Nothing works before cuInit(),
 * nor in a child of the process that called it, as with the real one. Machine code is
 * what fake_nvrtc.c makes, or a true CUBIN or fat binary. fake_libcuda_rest.c has the
 * functions that nothing here calls.
 */
#include "device/cuda/driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    INVALID_VALUE = 1, /* the driver's numbers */
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NO_BINARY = 209,
    FAILURE = 999,
    MOST = 8,
};

static pid_t started_in;
static int n_calls;
static int n_loads;

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text && *text ? atoi(text) : otherwise;
}

static int capabilities(int found[MOST])
{
    const char *text = getenv("FAKE_CUDA_CAPABILITIES");
    int n = 0;

    for (text = text ? text : "90"; text && *text && n < MOST; n++) {
        found[n] = atoi(text);
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    return n;
}

/* What each call begins with: 0, or what it gives back at once. */
static cu_result begin(void)
{
    if (++n_calls == number("FAKE_CUDA_FAIL_AT", 0))
        return FAILURE;
    return started_in == getpid() ? PTAC_CU_OK : NOT_INITIALIZED;
}

int fake_cuda_calls(void)
{
    return n_calls;
}

int fake_cuda_loads(void)
{
    return n_loads;
}

cu_result cuInit(unsigned int flags)
{
    if (++n_calls == number("FAKE_CUDA_FAIL_AT", 0))
        return FAILURE;
    if (started_in && started_in != getpid())
        return NOT_INITIALIZED;
    started_in = getpid();
    return flags ? INVALID_VALUE : PTAC_CU_OK;
}

cu_result cuGetErrorString(cu_result result, const char **text)
{
    *text = result == FAILURE     ? "a planted failure"
            : result == NO_BINARY ? "no kernel image is available for execution"
                                  : "an error";
    return PTAC_CU_OK;
}

cu_result cuDriverGetVersion(int *version)
{
    if (++n_calls == number("FAKE_CUDA_FAIL_AT", 0))
        return FAILURE;
    *version = number("FAKE_CUDA_VERSION", 13000);
    return PTAC_CU_OK;
}

cu_result cuDeviceGetCount(int *n)
{
    const cu_result result = begin();
    int found[MOST];

    if (result == PTAC_CU_OK)
        *n = capabilities(found);
    return result;
}

cu_result cuDeviceGet(cu_device *device, int i)
{
    const cu_result result = begin();
    int found[MOST];

    if (result != PTAC_CU_OK)
        return result;
    if (i < 0 || i >= capabilities(found))
        return INVALID_DEVICE;
    *device = i;
    return PTAC_CU_OK;
}

cu_result cuDeviceGetAttribute(int *value, cu_attribute attribute, cu_device device)
{
    const cu_result result = begin();
    int found[MOST];

    if (result != PTAC_CU_OK)
        return result;
    if (device < 0 || device >= capabilities(found))
        return INVALID_DEVICE;
    if (attribute != PTAC_CU_ATTRIBUTE_MAJOR && attribute != PTAC_CU_ATTRIBUTE_MINOR)
        return INVALID_VALUE;
    *value =
        attribute == PTAC_CU_ATTRIBUTE_MAJOR ? found[device] / 10 : found[device] % 10;
    return PTAC_CU_OK;
}

#ifndef WITHOUT_LIBRARIES
/* Machine code of sm_<n> runs on devices of the same major number, from n on. */
static bool fits(const char *code)
{
    int found[MOST], n = capabilities(found), made_for = 0;
    const bool is_ptx = strncmp(code, "FAKE PTX compute_", 17) == 0;

    made_for = atoi(code + (is_ptx ? 17 : 14));
    for (int i = 0; i < n; i++)
        if (found[i] < made_for || (!is_ptx && found[i] / 10 != made_for / 10))
            return false;
    return true;
}

cu_result cuLibraryLoadData(cu_library *library, const void *code,
                            cu_jit_option *options, void **values,
                            unsigned int n_options, cu_library_option *library_options,
                            void **library_values, unsigned int n_library_options)
{
    static const unsigned char fat_binary[] = {0x50, 0xed, 0x55, 0xba};
    const cu_result result = begin();

    (void)options, (void)values, (void)library_options, (void)library_values;
    if (result != PTAC_CU_OK)
        return result;
    if (n_options || n_library_options)
        return INVALID_VALUE;
    if (memcmp(code, fat_binary, sizeof fat_binary) != 0 &&
        strncmp(code, "\177ELF", 4) != 0) {
        if (strncmp(code, "FAKE CUBIN sm_", 14) != 0 &&
            strncmp(code, "FAKE PTX compute_", 17) != 0)
            return INVALID_IMAGE;
        if (!fits(code))
            return NO_BINARY;
    }
    n_loads++;
    *library = (cu_library)(void *)&n_loads;
    return PTAC_CU_OK;
}

cu_result cuLibraryGetKernel(cu_kernel *kernel, cu_library library, const char *name)
{
    const cu_result result = begin();

    if (result != PTAC_CU_OK)
        return result;
    if (library != (cu_library)(void *)&n_loads || !*name)
        return INVALID_VALUE;
    *kernel = (cu_kernel)(void *)&n_calls;
    return PTAC_CU_OK;
}
#endif
