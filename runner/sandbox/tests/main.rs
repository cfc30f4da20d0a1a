//! The sandbox with real wasm, above all with hostile wasm.
//!
//! This binary is its own compiling child (like the `heddle` binary), so it has its own `main`: `cargo test -p
//! heddle-sandbox --test sandbox -- <part of a name>`.

#![allow(clippy::too_many_lines, reason = "a test tells its story from begin to end")]

mod accept;
mod bad_texts;
mod bounded;
mod guests;
mod held;
mod hostile;
mod outcomes;
mod python;
mod queries;
mod rehearsals;
mod requests;
mod runtimes;
mod sources;
mod texts;
mod told;
mod top_levels;
mod uncaught;
mod unsent;

use guests::Bench;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long one test may take; the first one in Python compiles CPython.
const PATIENCE: Duration = Duration::from_secs(180);

type Test = (&'static str, fn(Bench) -> futures::future::BoxFuture<'static, ()>);

macro_rules! tests {
    ($($module:ident :: $name:ident),+ $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), |bench| Box::pin($module::$name(bench)))),+]
    };
}

const TESTS: &[Test] = tests![
    accept::command_modules,
    accept::text_and_binary,
    accept::refusals,
    accept::shapes_that_hurt,
    accept::a_component_is_described,
    accept::descriptions_that_fail,
    accept::artefacts_are_kept_and_checked,
    accept::loading_is_done_once,
    accept::threads_that_end_take_no_compiler_with_them,
    outcomes::a_command,
    outcomes::exit_codes,
    outcomes::long_lines,
    outcomes::a_component,
    outcomes::host_functions,
    outcomes::log_limit,
    outcomes::effects_only_of_success,
    hostile::endless_loop,
    hostile::loop_in_start,
    hostile::cancel,
    hostile::memory_bomb,
    hostile::initial_memory,
    hostile::recursion,
    hostile::much_output,
    hostile::log_flood,
    hostile::nothing_leaks_into_the_next,
    hostile::spinners_do_not_hold_up_others,
    hostile::heavy_ones_go_on_beside_light_ones,
    hostile::more_than_there_are_slots,
    hostile::sleeping_is_not_running,
    queries::typed_rows,
    queries::bounds_and_errors,
    queries::messages_that_are_too_large,
    queries::statements_count_as_memory,
    queries::a_timeout_cancels_the_statement,
    bounded::schemas_that_multiply_end,
    bounded::others_go_on_beside_an_attack,
    bounded::schemas_of_people_work_in_the_child,
    bounded::yaml_bombs_end,
    bounded::large_yaml_is_read,
    bounded::templates_that_take_long_end,
    bounded::templates_that_grow_end,
    requests::policy,
    requests::built_guests,
    unsent::texts_of_requests,
    unsent::bodies_of_requests,
    rehearsals::commands,
    rehearsals::javascript,
    sources::a_module_runs,
    sources::typescript,
    sources::endings,
    sources::host_functions_of_texts,
    sources::what_the_web_has,
    sources::fetching,
    sources::faults_of_texts,
    sources::hostile_texts,
    held::calls_that_have_begun,
    held::calls_that_are_too_large,
    held::answers_that_arrive,
    held::answers_after_much_memory,
    held::search_params_of_a_large_text,
    sources::snapshots_are_kept,
    // Before all others in Python: this compiles CPython for them.
    python::made_ready_in_advance,
    python::a_module_runs,
    python::endings,
    python::faults_of_texts,
    python::host_functions_of_texts,
    python::the_standard_library,
    python::async_functions,
    python::hostile_texts,
    python::requests_of_texts,
    python::messages_of_texts,
    python::params_of_a_typed_dict,
    python::params_of_odd_types,
    python::snapshots_of_python,
    rehearsals::python,
    top_levels::the_same_on_all_nodes,
    top_levels::evaluated_again_at_another_time,
    told::formats_of_the_console,
    told::errors_of_an_error,
    told::halves_of_characters,
    told::names_of_levels_and_schemes,
    told::charsets_of_answers,
    told::forgotten_awaits,
    uncaught::in_callbacks,
    uncaught::in_promises,
    uncaught::hostile_promises,
    runtimes::both_at_once,
    runtimes::tried_again_after_a_while,
    runtimes::nonsense,
    bad_texts::in_each_language,
    bad_texts::too_large_or_no_text,
    bad_texts::two_versions_of_the_runtime,
    bad_texts::nothing_is_left_behind,
];

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("compile-wasm") {
        guests::count_compilation();
        return heddle_sandbox::compile_child_main();
    }
    if std::env::args().nth(1).as_deref() == Some("compile-when-told") {
        return accept::compile_when_told();
    }
    if std::env::args().nth(1).as_deref() == Some("bounded-work") {
        return heddle_sandbox::bounded_child_main();
    }
    let bounded = heddle_sandbox::CompilerCommand {
        program: std::env::current_exe().expect("the program's own path"),
        args: vec!["bounded-work".into()],
        env: Vec::new(),
    };
    heddle_sandbox::bound_by_children(bounded).expect("threads");
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in TESTS {
        if !filter.is_empty() && !filter.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let began = now();
        let ended = runtime.block_on(async {
            let task = tokio::spawn(async move { test(Bench::new()).await });
            tokio::time::timeout(PATIENCE, task).await
        });
        let verdict = match ended {
            Ok(Ok(())) => "ok",
            Ok(Err(_)) => "FAILED",
            Err(_) => "FAILED (too slow)",
        };
        match verdict {
            "ok" => passed += 1,
            _ => failed += 1,
        }
        println!("test {name} ... {verdict} ({} ms)", began.elapsed().as_millis());
    }
    // In the form of the usual runner, so that these tests are counted too.
    let (word, code) = match failed {
        0 => ("ok", ExitCode::SUCCESS),
        _ => ("FAILED", ExitCode::FAILURE),
    };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored");
    code
}

/// The processor time of all threads of this process, to a hundredth of a second.
pub fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the kernel's account");
    // After the program's name, which may contain anything: user and system time are the fields 14 and 15.
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    Duration::from_millis(ticks * 10)
}

/// The current moment, for measurements.
#[expect(clippy::disallowed_methods, reason = "tests measure real time")]
pub fn now() -> Instant {
    Instant::now()
}
