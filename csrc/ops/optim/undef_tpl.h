/*
 * undef_tpl.h - forget the lanes, before other ones are named.
 */
#undef SUFFIX
#undef TARGET
#undef TYPE
#undef VEC
#undef LANES
#undef SET
#undef LOAD
#undef STORE
#undef ADD
#undef SUB
#undef MUL
#undef DIV
#undef FMA
#undef XOR
#undef MAXIMUM
#undef CAN_ROOT
#undef ROOT
#undef HOST_ROOT
#undef SUM
#undef DOT
#undef TOTAL
