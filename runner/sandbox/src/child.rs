//! What every child of a node does first: it ends with its node, and it yields to everything else on the machine.
//!
//! Being nice is not enough. Where the kernel schedules by sessions (`sched_autogroup_enabled`, see sched(7)), niceness
//! counts within a session only: a node that computes with all its children gets as large a share as the Postgres beside
//! it, which has a session of its own, and its children eat that share. So a child begins a session, and that is made as
//! nice as the child. Where nodes run in control groups of their own (systemd, containers) this changes nothing.

/// Ends with the thread that started it, and yields to whatever is less nice. That any of it fails is no reason not to
/// work.
pub(crate) fn settle_in(nice: libc::c_int) {
    // SAFETY: no memory is involved.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::setsid();
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
    // There is no such file where sessions are not scheduled.
    let _ = std::fs::write("/proc/self/autogroup", nice.to_string());
}
