/* A Vulkan driver in front of another one (DRIVER), which loses its device or runs out of memory.
 *
 * LOSE_AT_SUBMIT, LOSE_AT_WAIT, NO_MEMORY_AT: from which call on, counted from 1; 0 is never.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_LOST (-4)
#define OUT_OF_DEVICE_MEMORY (-2)

typedef void (*Function)(void);
typedef Function (*Lookup)(void *, const char *);
typedef int (*Submit)(void *, uint32_t, const void *, void *);
typedef int (*WaitFences)(void *, uint32_t, const void *, uint32_t, uint64_t);
typedef int (*WaitSemaphores)(void *, const void *, uint64_t);
typedef int (*Allocate)(void *, const void *, const void *, void *);

static void *driver;
static Lookup of_instance, of_device;
static Submit submit_;
static WaitFences wait_fences_;
static WaitSemaphores wait_semaphores_;
static Allocate allocate_;

static int due(const char *variable, int *calls) {
  const char *at = getenv(variable);
  return at && atoi(at) && ++*calls >= atoi(at);
}

static int submits, waits, allocations;

static int submit(void *queue, uint32_t count, const void *work, void *fence) {
  return due("LOSE_AT_SUBMIT", &submits) ? DEVICE_LOST : submit_(queue, count, work, fence);
}

static int wait_fences(void *device, uint32_t count, const void *fences, uint32_t all, uint64_t ns) {
  return due("LOSE_AT_WAIT", &waits) ? DEVICE_LOST : wait_fences_(device, count, fences, all, ns);
}

static int wait_semaphores(void *device, const void *what, uint64_t ns) {
  return due("LOSE_AT_WAIT", &waits) ? DEVICE_LOST : wait_semaphores_(device, what, ns);
}

static int allocate(void *device, const void *what, const void *with, void *memory) {
  return due("NO_MEMORY_AT", &allocations) ? OUT_OF_DEVICE_MEMORY
                                           : allocate_(device, what, with, memory);
}

#define IN_FRONT_OF(vulkan, kind, ours) \
  if (function && !strcmp(name, vulkan)) { ours##_ = (kind)function; return (Function)ours; }

static Function ours(const char *name, Function function) {
  IN_FRONT_OF("vkQueueSubmit", Submit, submit)
  IN_FRONT_OF("vkWaitForFences", WaitFences, wait_fences)
  IN_FRONT_OF("vkWaitSemaphores", WaitSemaphores, wait_semaphores)
  IN_FRONT_OF("vkWaitSemaphoresKHR", WaitSemaphores, wait_semaphores)
  IN_FRONT_OF("vkAllocateMemory", Allocate, allocate)
  return function;
}

static Function look_up_of_device(void *device, const char *name) {
  return ours(name, of_device(device, name));
}

static void *theirs(const char *name) {
  if (!driver) driver = dlopen(getenv("DRIVER"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(driver, name);
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
  if (!of_instance) of_instance = (Lookup)theirs("vk_icdGetInstanceProcAddr");
  if (strcmp(name, "vkGetDeviceProcAddr")) return ours(name, of_instance(instance, name));
  of_device = (Lookup)of_instance(instance, name);
  return (Function)look_up_of_device;
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
  Lookup look_up = (Lookup)theirs("vk_icdGetPhysicalDeviceProcAddr");
  return look_up ? look_up(instance, name) : 0;
}

int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
  return ((int (*)(uint32_t *))theirs("vk_icdNegotiateLoaderICDInterfaceVersion"))(version);
}
