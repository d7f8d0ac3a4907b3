// derby_latent_uncut: latent_attention.cu for contexts that no plan cuts, a library of its own.
#define LATENT_UNCUT
#include "latent_attention.cu"
