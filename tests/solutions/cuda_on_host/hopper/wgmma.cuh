#pragma once
#include "hopper.cuh"
