/*
 * files.h - /proc and /sys as a test says they are.
 */
#ifndef PTAC_TESTS_MEMORY_FILES_H
#define PTAC_TESTS_MEMORY_FILES_H

#include <stdbool.h>

/* An empty folder stands for the root from now on; false, and why, without one. */
bool files_begin(void);
void files_write(const char *path, const char *text);
/* The system's own again. */
void files_end(void);

#endif
