//! The same work in a process for each task.

use std::io::Write;
use std::process::{Command, Stdio};

use heddle_tests::bench::{now, percentile, processor_time_of_children};
use serde_json::Value;

use crate::languages::{JS_EMPTY, JS_HEAVY, PY_EMPTY, PY_HEAVY};
use crate::table::{Table, both, bytes, ms};
use crate::{INVOKE, JSON, MEMORY, NODE_CPU, RATE, SIZE, counts, name, rows};

/// The same as a process: program, the option before a text, and what makes a process of a script.
pub(crate) struct AsProcess {
    title: &'static str,
    program: &'static str,
    option: &'static str,
    empty: String,
    heavy: String,
    /// Added to a script, it writes the most memory that the process has had to standard error, in kB. (The kernel's own
    /// figure for children counts what their parent had when it made them.)
    peak: &'static str,
}

pub(crate) fn all() -> [AsProcess; 2] {
    // The log is written to standard error, since the output is on standard output.
    let node = |script: &str| {
        let script = script
            .replace("export default", "const run =")
            .replace("console.log", "console.error");
        format!("{script}\nconsole.log(JSON.stringify(run(JSON.parse(require('fs').readFileSync(0, 'utf8')))))")
    };
    let python = |script: &str| {
        let script = script.replace("print(greeting)", "print(greeting, file=sys.stderr)");
        format!("import json, sys\n{script}\nprint(json.dumps(run(json.load(sys.stdin), None)))")
    };
    [
        AsProcess {
            title: "`node -e`",
            program: "node",
            option: "-e",
            empty: node(JS_EMPTY),
            heavy: node(JS_HEAVY),
            peak: "console.error(require('fs').readFileSync('/proc/self/status', 'utf8').match(/VmHWM:\\s*(\\d+)/)[1])",
        },
        AsProcess {
            title: "`python3 -c`",
            program: "python3",
            option: "-c",
            empty: python(PY_EMPTY),
            heavy: python(PY_HEAVY),
            peak: "[print(line.split()[1], file=sys.stderr) for line in open('/proc/self/status') if 'VmHWM' in line]",
        },
    ]
}

/// Measures it, if its interpreter is there.
pub(crate) fn measure(process: &AsProcess, table: &mut Table) {
    let title = process.title;
    let known = Command::new(process.program).arg("--version").output();
    let Ok(version) = known else {
        table.put(INVOKE, title, format!("there is no {}", process.program));
        return;
    };
    table.put(SIZE, title, String::from_utf8_lossy(&version.stdout).trim().to_owned());
    // `python3` may be a script that looks for the program.
    let program = resolved(process.program);
    let once = |text: &str, params: &Value| spawn(&program, process.option, text, params);
    let before = processor_time_of_children();
    let mut took: Vec<f64> = (0..counts().processes)
        .map(|_| once(&process.empty, &name()).0)
        .collect();
    table.put(
        NODE_CPU,
        title,
        ms((processor_time_of_children() - before) / counts().processes as f64),
    );
    table.put(INVOKE, title, both(&mut took));
    let mut took: Vec<f64> = (0..counts().heavy).map(|_| once(&process.heavy, &rows()).0).collect();
    table.put(JSON, title, ms(percentile(&mut took, 0.5)));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let began = now();
    let done: Vec<usize> = std::thread::scope(|scope| {
        let work = || {
            let mut count = 0;
            while began.elapsed() < counts().rate_for {
                once(&process.empty, &name());
                count += 1;
            }
            count
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let rate = done.iter().sum::<usize>() as f64 / began.elapsed().as_secs_f64();
    table.put(RATE, title, format!("{rate:.0}"));
    let (_, said) = once(&format!("{}\n{}", process.empty, process.peak), &name());
    let kilobytes: u64 = said
        .lines()
        .last()
        .and_then(|line| line.trim().parse().ok())
        .expect("a number");
    table.put(MEMORY, title, bytes(kilobytes << 10));
}

/// The program itself, where the name is that of a script that finds it.
fn resolved(program: &str) -> String {
    let ask: &[&str] = match program {
        "python3" => &["-c", "import sys; print(sys.executable)"],
        _ => &["-p", "process.execPath"],
    };
    let said = Command::new(program).args(ask).output().expect("the program");
    String::from_utf8_lossy(&said.stdout).trim().to_owned()
}

/// Runs it once, in a process; the seconds from its start to its end, and what it wrote to standard error.
fn spawn(program: &str, option: &str, text: &str, params: &Value) -> (f64, String) {
    let params = params.to_string();
    let began = now();
    let mut child = Command::new(program)
        .args([option, text])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(params.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("its end");
    let took = began.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && serde_json::from_slice::<Value>(&output.stdout).is_ok(),
        "{said}"
    );
    (took, said)
}
