// Kernels whose blocks of threads wait for one another, or for another GPU. Where two of them have
// begun and each has the room that the other still needs, both wait for ever. A cooperative launch
// prevents that, since all its blocks begin at once, some 2 us after the kernel before it has
// ended. Where one line of such kernels is alone on its GPU it is not needed: what else runs there,
// products of libraries on other streams among it, is taken to end without them. So who launches
// them says so here.
#ifndef HEADWAY_DEVICE_CUDA_WAITING_KERNELS_H_
#define HEADWAY_DEVICE_CUDA_WAITING_KERNELS_H_

#include <mutex>
#include <vector>

namespace headway::cuda {

// Known to this process: others take turns with it on a GPU, unless they share it by MPS, under
// which no line is alone. A program that launches such kernels beside the engine, on the engine's
// GPU, is not known.
class WaitingKernels {
 public:
  // `device` is the current one in calls.
  explicit WaitingKernels(int device) : device_(device) {}
  ~WaitingKernels();  // all that it has launched is done
  WaitingKernels(const WaitingKernels&) = delete;
  WaitingKernels& operator=(const WaitingKernels&) = delete;

  // For as long as the launches take.
  struct Turn {
    std::unique_lock<std::mutex> lock;
    bool alone = false;  // else launches are cooperative
  };
  // For a launch in a line, whose kernels run one behind the other: that of a stream, say. The
  // first beside a line that was alone waits for all work on the device. A line ends with this
  // object.
  Turn Take(const void* line);
  // For kernels that are launched without a turn, from now on; may wait as the first one does.
  void Join();

 private:
  const int device_;
  std::vector<const void*> lines_;
};

}  // namespace headway::cuda

#endif  // HEADWAY_DEVICE_CUDA_WAITING_KERNELS_H_
