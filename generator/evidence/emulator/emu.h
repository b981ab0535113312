// CUDA on a CPU: everything a kernel source sees when g++ builds it instead of nvcc.
//
// The source itself is unchanged but for its inline PTX, which ptx.py turns into calls of the ptx_* functions
// below, so the very helpers of the emitted source are run, operand order included. One OS thread runs all;
// every CUDA thread is a fiber (runtime.cpp). A construct that is missing here fails to build: nothing is guessed.
#pragma once
#include "runtime.h"
#include "language.h"
#include "warp.h"
#include "arithmetic.h"
#include "floats.h"
#include "ptx.h"
#include "hopper.h"
#include "blackwell.h"
