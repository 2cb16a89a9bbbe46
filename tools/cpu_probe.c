/* cpu_probe.c - does this machine really run one family of x86 instructions?
 *
 * Compiled once per family with -DPROBE_<FAMILY> and the compiler switch for it, then run. Exit 0: the instructions ran and
 * gave the right numbers. Anything else, a crash included, means "do not use them". CPUID is not asked, because some virtual
 * machines announce instructions that they do not run.
 */
#include <immintrin.h>
#include <string.h>

/* Inputs pass through volatile so that the compiler cannot work the answer out beforehand. */
static volatile int seed = 3;

int main(void) {
  int ok = 1;
#if defined(PROBE_SSE42)
  __m128i a = _mm_set1_epi64x(seed), b = _mm_set1_epi64x(seed - 1);
  ok = _mm_movemask_epi8(_mm_cmpgt_epi64(a, b)) == 0xffff && _mm_popcnt_u32((unsigned)seed) == 2;
#elif defined(PROBE_AVX)
  float out[8];
  _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_set1_ps((float)seed), _mm256_set1_ps(2.0f)));
  ok = out[0] == 6.0f && out[7] == 6.0f;
#elif defined(PROBE_AVX2)
  int out[8];
  __m256i v = _mm256_add_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), _mm256_set1_epi32(seed));
  v = _mm256_permutevar8x32_epi32(v, _mm256_set_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  _mm256_storeu_si256((__m256i*)out, v);
  ok = out[0] == 10 && out[7] == 3;
#elif defined(PROBE_FMA)
  float out[8];
  __m256 x = _mm256_set1_ps((float)seed);
  _mm256_storeu_ps(out, _mm256_fmadd_ps(x, x, x));
  ok = out[0] == 12.0f && out[7] == 12.0f;
#elif defined(PROBE_F16C)
  float out[8];
  __m128i half = _mm256_cvtps_ph(_mm256_set1_ps((float)seed + 0.5f), _MM_FROUND_TO_NEAREST_INT);
  _mm256_storeu_ps(out, _mm256_cvtph_ps(half));
  ok = out[0] == 3.5f && out[7] == 3.5f;
#elif defined(PROBE_BMI2)
  ok = _pdep_u32((unsigned)seed, 0xf0u) == 0x30u && _pext_u32(0x30u * (unsigned)(seed - 2), 0xf0u) == 3u;
#elif defined(PROBE_AVX_VNNI)
  int out[8];
  __m256i u = _mm256_set1_epi8((char)seed);
  _mm256_storeu_si256((__m256i*)out, _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), u, u));
  ok = out[0] == 36 && out[7] == 36;
#elif defined(PROBE_AVX512)
  /* F, BW, DQ, VL and CD together: ggml switches them on as one. */
  float f[16];
  long long q[8];
  int d[16], m[8];
  signed char c[64];
  _mm512_storeu_ps(f, _mm512_fmadd_ps(_mm512_set1_ps((float)seed), _mm512_set1_ps(2.0f), _mm512_set1_ps(1.0f)));
  _mm512_storeu_si512(c, _mm512_add_epi8(_mm512_set1_epi8((char)seed), _mm512_set1_epi8(1)));
  _mm512_storeu_si512(q, _mm512_mullo_epi64(_mm512_set1_epi64(seed), _mm512_set1_epi64(seed)));
  _mm512_storeu_si512(d, _mm512_lzcnt_epi32(_mm512_set1_epi32(seed)));
  __m256i y = _mm256_set1_epi32(seed);
  _mm256_storeu_si256((__m256i*)m, _mm256_mask_add_epi32(y, 0x0f, y, y));
  ok = f[15] == 7.0f && c[63] == 4 && q[7] == 9 && d[15] == 30 && m[0] == 6 && m[7] == 3;
#elif defined(PROBE_AVX512_VBMI)
  signed char in[64], out[64];
  for (int i = 0; i < 64; ++i) in[i] = (signed char)(63 - i);
  __m512i index = _mm512_loadu_si512(in);
  __m512i table = _mm512_add_epi8(index, _mm512_set1_epi8((char)seed));
  _mm512_storeu_si512(out, _mm512_permutexvar_epi8(index, table));
  ok = out[0] == 3 && out[63] == 66;
#elif defined(PROBE_AVX512_VNNI)
  int out[16];
  __m512i u = _mm512_set1_epi8((char)seed);
  _mm512_storeu_si512(out, _mm512_dpbusd_epi32(_mm512_setzero_si512(), u, u));
  ok = out[0] == 36 && out[15] == 36;
#elif defined(PROBE_AVX512_BF16)
  float out[16];
  __m512bh h = _mm512_cvtne2ps_pbh(_mm512_set1_ps((float)seed), _mm512_set1_ps((float)seed));
  _mm512_storeu_ps(out, _mm512_dpbf16_ps(_mm512_setzero_ps(), h, h));
  ok = out[0] == 18.0f && out[15] == 18.0f;
#else
#error "name the family to probe: -DPROBE_AVX2, ..."
#endif
  return ok ? 0 : 1;
}
