//! Promises of JavaScript that fail, and that nobody awaits: the log tells of them.
//!
//! QuickJS calls a function when a promise fails without being awaited, and when somebody awaits one that has failed (its
//! `JS_SetHostPromiseRejectionTracker`), but no export of the interpreter sets that function. Like the limit of the
//! recursion, it is a word in the interpreter's memory, and is set there.
//!
//! The function is part of the glue ([`functions`]). It gets values of the interpreter, of which only JavaScript can make
//! a line in the log. So it keeps them in an array of JavaScript (`js/rejected.js`), by writing into the array's memory.
//! When the interpreter has nothing else to do, the host looks at the glue's global `rejected`, and calls `tell`
//! ([`super::runtime::Running::tell_rejected`]). A promise that somebody has awaited by then was taken out again.
//!
//! What it relies on is true of the interpreter in the bundle, whose digest `heddle-runtimes` checks: a value has 64 bits,
//! with its tag in the upper 32, where 0 is an integer, and tags from -9 to -1 are those of pointers with a count of
//! references in the word before; the values of an array lie side by side. If the array or the words are not found, no
//! function is set, and nothing is told.

use super::image::Layout;

/// How many promises are kept until the host looks.
const PLACES: u32 = 64;
/// The first integer in the array; each one is larger by one than the one before.
const FIRST: u32 = 0x4865_6400;
/// The bytes of a value.
const VALUE_BYTES: usize = 8;
/// Where the interpreter keeps the function and its last argument, after the size of its stack.
const TRACKER: usize = 48;
/// The function's position among those of the glue.
const POSITION: u32 = 3;

/// The function, and what it needs, as a part of the glue.
pub(super) fn functions() -> String {
    format!(
        r#"  ;; How many promises are in the list.
  (global $rejected (export "rejected") (mut i32) (i32.const 0))
  ;; Counts one reference to a value more or less, before the value, if its tag says that references are counted. The
  ;; last one is never given up here.
  (func $refer (param $value i64) (param $by i32) (local $at i32) (local $count i32)
    (if (i32.ge_u (i32.wrap_i64 (i64.shr_u (local.get $value) (i64.const 32))) (i32.const -9))
      (then
        (local.set $at (i32.sub (i32.wrap_i64 (local.get $value)) (i32.const 4)))
        (local.set $count (i32.add (i32.load (local.get $at)) (local.get $by)))
        (if (i32.gt_s (local.get $count) (i32.const 0))
          (then (i32.store (local.get $at) (local.get $count)))))))
  ;; A promise fails and nobody awaits it, or ($handled) somebody awaits one that has failed.
  (func $rejection (param $cx i32) (param $promise i64) (param $reason i64) (param $handled i32) (param $list i32)
    (local $count i32) (local $at i32) (local $end i32)
    (local.set $count (i32.load (local.get $list)))
    (local.set $at (i32.add (local.get $list) (i32.const 8)))
    (local.set $end (i32.add (local.get $at) (i32.shl (local.get $count) (i32.const 4))))
    (if (i32.eqz (local.get $handled))
      (then
        (if (i32.ge_u (local.get $count) (i32.const {PLACES})) (then (return)))
        (call $refer (local.get $promise) (i32.const 1))
        (call $refer (local.get $reason) (i32.const 1))
        (i64.store (local.get $end) (local.get $promise))
        (i64.store (i32.add (local.get $end) (i32.const 8)) (local.get $reason))
        (local.set $count (i32.add (local.get $count) (i32.const 1))))
      (else
        (loop $next
          (if (i32.ge_u (local.get $at) (local.get $end)) (then (return)))
          (if (i64.ne (i64.load (local.get $at)) (local.get $promise))
            (then
              (local.set $at (i32.add (local.get $at) (i32.const 16)))
              (br $next))))
        (call $refer (local.get $promise) (i32.const -1))
        (call $refer (local.get $reason) (i32.const -1))
        ;; The last one takes its place.
        (local.set $end (i32.sub (local.get $end) (i32.const 16)))
        (i64.store (local.get $at) (i64.load (local.get $end)))
        (i64.store (i32.add (local.get $at) (i32.const 8)) (i64.load (i32.add (local.get $end) (i32.const 8))))
        (i64.store (local.get $end) (i64.const 0))
        (i64.store (i32.add (local.get $end) (i32.const 8)) (i64.const 0))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))))
    (i32.store (local.get $list) (local.get $count))
    (global.set $rejected (local.get $count)))"#
    )
}

/// Lets an interpreter report promises to the array in its memory. `state` is the address of the size of its stack.
pub(super) fn track(memory: &mut [u8], layout: &Layout, state: usize) {
    let words = state + TRACKER..state + TRACKER + 8;
    let first: Vec<u8> = (FIRST..=FIRST + 2 * PLACES)
        .flat_map(|value| u64::from(value).to_le_bytes())
        .collect();
    let unset = memory.get(words.clone()).is_some_and(|words| words == [0; 8]);
    let Some(list) = find(memory, layout.heap as usize, &first).filter(|_| unset) else {
        return;
    };
    memory[list..list + first.len()].fill(0);
    let function = u64::from(layout.own_functions + POSITION);
    memory[words].copy_from_slice(&(function | ((list as u64) << 32)).to_le_bytes());
}

/// The only place of these values.
fn find(memory: &[u8], heap: usize, values: &[u8]) -> Option<usize> {
    let end = memory.len().saturating_sub(values.len());
    let mut places = (heap..end)
        .step_by(VALUE_BYTES)
        .filter(|at| memory[*at..].starts_with(values));
    let place = places.next()?;
    places.next().is_none().then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        stack: 0,
        memory_base: 0,
        table_base: 1,
        own_functions: 700,
        interface: 0,
        heap: 64,
        pages: 1,
    };

    fn memory(lists: &[usize]) -> Vec<u8> {
        let mut memory = vec![0; 8 << 10];
        for list in lists {
            for place in 0..=2 * PLACES {
                let at = list + place as usize * VALUE_BYTES;
                memory[at..at + 4].copy_from_slice(&(FIRST + place).to_le_bytes());
            }
        }
        memory
    }

    #[test]
    fn the_array_is_found_and_emptied() {
        let mut tracked = memory(&[1_024]);
        track(&mut tracked, &LAYOUT, 64);
        let mut expect = vec![0; 8 << 10];
        expect[64 + TRACKER..][..4].copy_from_slice(&703_u32.to_le_bytes());
        expect[64 + TRACKER + 4..][..4].copy_from_slice(&1_024_u32.to_le_bytes());
        assert!(tracked == expect);
    }

    #[test]
    fn without_a_certain_place_nothing_is_set() {
        let mut used = memory(&[1_024]);
        used[64 + TRACKER] = 1;
        for other in [memory(&[]), memory(&[1_024, 4_096]), memory(&[1_028]), used] {
            let mut tracked = other.clone();
            track(&mut tracked, &LAYOUT, 64);
            assert!(tracked == other);
        }
    }
}
