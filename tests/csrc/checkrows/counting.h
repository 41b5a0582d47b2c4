/*
 * counting.h - bytes and launches of a device's rows, on typical calls.
 */
#ifndef PTAC_TESTS_COUNTING_H
#define PTAC_TESTS_COUNTING_H

#include "checkrows.h"

/*
 * Run each row on each typical call of its operator, in each dtype that it takes, and
 * print what was moved. False where that is more than 1.1 times what the call needs, or
 * launches are more than the generator allows, or a row took no call.
 */
bool count_op(const generator *g);

#endif
