// Of cuda_fp16.h what the tests of the kernels on the CPU need: pairs of fp16.

#pragma once
#include "dense_types.h"
