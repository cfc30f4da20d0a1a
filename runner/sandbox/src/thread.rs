//! What a thread asks of the kernel for itself: its time on a processor, its priority.

use std::time::Duration;

/// Processor time of the calling thread.
pub(crate) fn thread_cpu_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Asks for long and rare slices instead of short and frequent ones. This costs a guest nothing, and lets every thread
/// that wakes up preempt it. As a batch thread, it preempts nobody. Older kernels ignore the slice.
#[cfg(target_os = "linux")]
pub(crate) fn lengthen_slice(nice: libc::c_int, slice: Duration) {
    // SAFETY: all of the structure's fields are integers, for which zero is a value.
    let mut wanted: libc::sched_attr = unsafe { std::mem::zeroed() };
    wanted.size = size_of::<libc::sched_attr>() as u32;
    wanted.sched_policy = libc::SCHED_BATCH as u32;
    wanted.sched_nice = nice;
    wanted.sched_runtime = slice.as_nanos() as u64;
    // SAFETY: the pointer is to a live structure of the size that it names; 0 means the caller.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn lengthen_slice(_nice: libc::c_int, _slice: Duration) {}

/// Sets the niceness of the calling thread. On Linux it belongs to the thread; if it fails, guests only compete harder.
pub(crate) fn lower_priority(nice: libc::c_int) {
    // SAFETY: no memory is involved; 0 means the caller.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
}
