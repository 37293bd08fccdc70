// Attention without softmax in fp32 on the CPU: one parallel region a call.
//
// Threads take pieces of work from a counter, so that one which the system holds up delays nothing
// but its own piece. Scores live transposed, [keys][rows], a few vectors of rows wide: then k and v
// are read as they lie, one number at a time, and every product is the one loop of `multiply`.
//
//   forward   S' = K Q'      O' += V' h(S')
//   backward  S' = K Q'      dW' = V G'     dQ' += K' dS'     dV += h(S') G     dK += dS' Q
//   of a bias dS', of a mask dW' h(S'), by a call of their own
//
// A prime turns a matrix: rows of queries become lanes of vectors.

#include "activations.h"
#include "backward.h"
#include "few.h"
#include "forward.h"

namespace {

struct Work {
  const Call* call;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  int64_t pieces;
};

int64_t count_pieces(const Call& c) {
  if (c.kind == kOfBias || c.kind == kOfMask) return Pieces(c).count();
  const int64_t heads = c.kind == kForward ? c.q_heads : c.kv_heads;
  const int64_t length = c.kind == kForward ? c.queries
                         : c.kind == kFew   ? c.q_heads / c.kv_heads * c.queries
                                            : c.keys;
  return c.samples * heads * ((length + c.block - 1) / c.block);
}

void run_piece(const Call& c, int64_t piece) {
  switch (c.kind) {
    case kForward: return attend<ACTIVATION>(c, piece);
    case kFew: return attend_few<ACTIVATION>(c, piece);
    case kBackward: return differentiate_share<ACTIVATION>(c, piece);
    case kOfBias: return differentiate_scores<ACTIVATION, false>(c, piece);
    case kOfMask: return differentiate_scores<ACTIVATION, true>(c, piece);
  }
}

void run_thread(void* data) {
  Work& work = *static_cast<Work*>(data);
  try {
    for (int64_t piece; (piece = work.next.fetch_add(1)) < work.pieces;)
      run_piece(*work.call, piece);
  } catch (const std::bad_alloc&) {
    work.failed = true;
    work.next = work.pieces;
  }
}

}  // namespace

// 0, or 1 where memory was not to be had. `region` is GOMP_parallel of the OpenMP that PyTorch has
// loaded.
extern "C" int flashpoint_run(const Call* call,
                              void (*region)(void (*)(void*), void*, unsigned, unsigned)) {
  Work work;
  work.call = call;
  work.pieces = count_pieces(*call);
  const int64_t threads = call->threads < work.pieces ? call->threads : work.pieces;
  if (threads > 1) region(run_thread, &work, static_cast<unsigned>(threads), 0);
  else run_thread(&work);
  return work.failed;
}
