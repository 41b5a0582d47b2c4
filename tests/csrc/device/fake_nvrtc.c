/*
 * fake_nvrtc.c - NVRTC's ABI without its compiler, for tests: strict about its use.
 *
 * A program is created, compiled once, read and destroyed; the options have to be those
 * that kernels need, and every header that a text includes has to be given. What breaks
 * a rule is counted. FAKE_NVRTC_FAIL names a function that fails: "Compile" with a log,
 * "CreateProgram", "GetCUBIN" ... ; FAKE_NVRTC_WAIT a file that the compiler waits for.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, /* NVRTC's numbers */
    PROGRAM_CREATION_FAILURE = 2,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
    MOST_HEADERS = 32,
};

typedef struct program {
    char *text;
    int n_headers;
    char *headers[MOST_HEADERS], *names[MOST_HEADERS];
    bool is_compiled;
    char log[512], code[256];
    bool is_cubin;
} program;

static const int supported[] = {75, 80, 90, 100};
static int n_alive, n_compiled, n_violations;

static bool fails(const char *function)
{
    const char *named = getenv("FAKE_NVRTC_FAIL");

    return named && strcmp(named, function) == 0;
}

static int violation(int result)
{
    n_violations++;
    return result;
}

int fake_nvrtc_alive(void)
{
    return n_alive;
}

int fake_nvrtc_compiled(void)
{
    return n_compiled;
}

int fake_nvrtc_violations(void)
{
    return n_violations;
}

const char *nvrtcGetErrorString(int result)
{
    return result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}

int nvrtcVersion(int *major, int *minor)
{
    const char *version = getenv("FAKE_NVRTC_VERSION");

    *major = version ? atoi(version) : 13;
    *minor = 2;
    return fails("Version") ? INVALID_INPUT : SUCCESS;
}

int nvrtcGetNumSupportedArchs(int *n)
{
    *n = sizeof supported / sizeof *supported;
    return SUCCESS;
}

int nvrtcGetSupportedArchs(int *numbers)
{
    memcpy(numbers, supported, sizeof supported);
    return SUCCESS;
}

int nvrtcCreateProgram(program **made, const char *text, const char *name,
                       int n_headers, const char *const *headers,
                       const char *const *names)
{
    program *p;

    if (fails("CreateProgram"))
        return PROGRAM_CREATION_FAILURE;
    if (!made || !text || !name || n_headers < 0 || n_headers > MOST_HEADERS)
        return violation(INVALID_INPUT);
    p = calloc(1, sizeof *p);
    p->text = strdup(text);
    p->n_headers = n_headers;
    for (int i = 0; i < n_headers; i++) {
        p->headers[i] = strdup(headers[i]);
        p->names[i] = strdup(names[i]);
    }
    n_alive++;
    *made = p;
    return SUCCESS;
}

int nvrtcDestroyProgram(program **made)
{
    program *p = made ? *made : NULL;

    if (!p)
        return violation(INVALID_PROGRAM);
    for (int i = 0; i < p->n_headers; i++) {
        free(p->headers[i]);
        free(p->names[i]);
    }
    free(p->text);
    free(p);
    *made = NULL;
    n_alive--;
    return SUCCESS;
}

/* Whether all that a text includes was given; the emulation is for g++. */
static bool has_headers(program *p, const char *text)
{
    for (const char *at = strstr(text, "#include"); at;
         at = strstr(at + 1, "#include")) {
        char name[128];
        bool is_given = false;

        if (sscanf(at, "#include \"%127[^\"]\"", name) != 1) {
            snprintf(p->log, sizeof p->log, "error: what is %.40s", at);
            return false;
        }
        for (int i = 0; i < p->n_headers; i++)
            is_given |= strcmp(name, p->names[i]) == 0;
        if (!is_given && strcmp(name, "device/cuda/emulate.h") != 0) {
            snprintf(p->log, sizeof p->log, "error: cannot open source file %s", name);
            return false;
        }
    }
    return true;
}

/* The architecture that the options ask for, 0 for none that is known. */
static int read_options(program *p, int n, const char *const *options)
{
    bool is_exact = false;
    int architecture = 0, known = 0;

    for (int i = 0; i < n; i++) {
        is_exact |= strcmp(options[i], "--fmad=false") == 0;
        if (sscanf(options[i], "--gpu-architecture=sm_%d", &architecture) == 1)
            p->is_cubin = true;
        else
            sscanf(options[i], "--gpu-architecture=compute_%d", &architecture);
    }
    for (size_t i = 0; i < sizeof supported / sizeof *supported; i++)
        if (supported[i] == architecture)
            known = architecture;
    return is_exact ? known : 0;
}

int nvrtcCompileProgram(program *p, int n_options, const char *const *options)
{
    const char *awaited = getenv("FAKE_NVRTC_WAIT");
    int architecture;

    if (!p || p->is_compiled)
        return violation(INVALID_PROGRAM);
    p->is_compiled = true;
    n_compiled++;
    while (awaited && access(awaited, F_OK) != 0)
        usleep(1000);
    architecture = read_options(p, n_options, options);
    if (!architecture)
        return violation(INVALID_OPTION);
    if (fails("Compile")) {
        strcpy(p->log, "kernel.cu(7): error: a planted error\nmore of it");
        return COMPILATION;
    }
    for (int i = 0; i < p->n_headers; i++)
        if (!has_headers(p, p->headers[i]))
            return violation(COMPILATION);
    if (!has_headers(p, p->text))
        return violation(COMPILATION);
    snprintf(p->code, sizeof p->code, "FAKE %s%d of %zu",
             p->is_cubin ? "CUBIN sm_" : "PTX compute_", architecture, strlen(p->text));
    return SUCCESS;
}

static int size_of(const program *p, const char *text, size_t *size)
{
    if (!p || !p->is_compiled)
        return violation(INVALID_PROGRAM);
    *size = strlen(text) + 1;
    return SUCCESS;
}

static int read_text(const program *p, const char *text, char *buffer)
{
    if (!p || !p->is_compiled || !buffer)
        return violation(INVALID_PROGRAM);
    strcpy(buffer, text);
    return SUCCESS;
}

int nvrtcGetProgramLogSize(program *p, size_t *size)
{
    return size_of(p, p->log, size);
}

int nvrtcGetProgramLog(program *p, char *log)
{
    return read_text(p, p->log, log);
}

int nvrtcGetCUBINSize(program *p, size_t *size)
{
    return p->is_cubin ? size_of(p, p->code, size) : violation(INVALID_PROGRAM);
}

int nvrtcGetCUBIN(program *p, char *code)
{
    return fails("GetCUBIN") ? INVALID_INPUT : read_text(p, p->code, code);
}

int nvrtcGetPTXSize(program *p, size_t *size)
{
    return p->is_cubin ? violation(INVALID_PROGRAM) : size_of(p, p->code, size);
}

int nvrtcGetPTX(program *p, char *code)
{
    return read_text(p, p->code, code);
}
