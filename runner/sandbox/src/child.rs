//! The first steps of every child of a node: it must end with its node, and let everything else on the machine go
//! first.
//!
//! Niceness is not enough. Where the kernel schedules by sessions (`sched_autogroup_enabled`, see sched(7)), niceness
//! only counts within a session: a node that computes with all its children would get as much as the Postgres next to
//! it, which has its own session, and its children would use most of that. So a child begins a session, and the session
//! gets the child's niceness. Where nodes run in their own control groups (systemd, containers), this changes nothing.

/// Ends with the thread that started it, and lets less nice threads go first. If a part of this fails, the child works
/// all the same.
pub(crate) fn settle_in(nice: libc::c_int) {
    // SAFETY: no memory is involved.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::setsid();
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
    // The file does not exist where sessions are not scheduled.
    let _ = std::fs::write("/proc/self/autogroup", nice.to_string());
}
