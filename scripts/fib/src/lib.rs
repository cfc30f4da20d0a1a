//! Fibonacci numbers: quick by a loop, or slow by recursion to keep a processor busy.

use heddle::Failure;

/// The largest `n` whose number fits 64 bits.
const MAX_LOOP: u32 = 93;

/// Recursion takes `fib(n)` steps: this many last for some minutes.
const MAX_RECURSION: u32 = 55;

/// Which number to compute, and how.
#[heddle::data]
pub struct Params {
    /// Which Fibonacci number; fib(0) = 0, fib(1) = 1.
    #[schemars(range(max = 93))]
    n: u32,
    /// Whether to compute it the slow way.
    #[serde(default)]
    recursion: bool,
}

/// Computes a Fibonacci number.
#[heddle::task]
fn run(params: Params) -> Result<u64, Failure> {
    let max = if params.recursion { MAX_RECURSION } else { MAX_LOOP };
    if params.n > max {
        return Err(Failure::fatal(format!("n is at most {max} here, not {}", params.n)));
    }
    Ok(if params.recursion {
        by_recursion(params.n)
    } else {
        by_loop(params.n)
    })
}

fn by_loop(n: u32) -> u64 {
    let (mut current, mut next) = (0_u64, 1_u64);
    for _ in 0..n {
        // Past fib(93) `next` would not fit; it is not asked for any more then.
        (current, next) = (next, current.wrapping_add(next));
    }
    current
}

fn by_recursion(n: u32) -> u64 {
    if n < 2 {
        n.into()
    } else {
        by_recursion(n - 1) + by_recursion(n - 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(n: u32, recursion: bool, expect: u64) {
        assert_eq!(run(Params { n, recursion }).unwrap(), expect, "fib({n})");
    }

    #[test]
    fn both_ways_agree() {
        for n in 0..20 {
            check(n, true, by_loop(n));
        }
        check(10, false, 55);
        check(93, false, 12_200_160_415_121_876_738);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(
            run(Params {
                n: 94,
                recursion: false
            })
            .unwrap_err()
            .is_fatal()
        );
        assert!(run(Params { n: 56, recursion: true }).unwrap_err().is_fatal());
    }
}
