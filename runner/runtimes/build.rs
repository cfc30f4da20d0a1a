//! Fetches the interpreters, and builds the checker.
//!
//! QuickJS-ng and CPython are written in C, and a C compiler for WebAssembly is nothing that everybody has. The packages
//! `componentize-qjs` and `componentize-py` on crates.io carry them compiled, but as dependencies they would bring other
//! wasmtimes along, minutes of building for a few files. So Cargo is asked for the packages' files alone: for each a
//! project of its own, made here, whose only dependency it is, with everything that *it* depends on patched to empty
//! packages. Nothing of them is compiled or run. The lock files pin the packages, and the files' digests are checked.
//!
//! What checks texts before an interpreter sees them (`typescript`) is ours, and built to wasm like the example scripts: by
//! a nested Cargo, with their profile and in their target directory, because the macros of both are made once there.

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

mod nested_cargo;
use nested_cargo::{nested, outer_target_dir, variable};

/// A package that carries an interpreter.
struct Package {
    name: &'static str,
    version: &'static str,
    /// Its files, by what they are called here, with their digests.
    files: &'static [(&'static str, &'static str, &'static str)],
    /// What it depends on: name, a version that satisfies it, and the features that it asks for.
    stubs: &'static [(&'static str, &'static str, &'static [&'static str])],
    lock: &'static str,
}

/// The interpreter in it, by `prebuilt/runtime-sync.wasm.cdx.json` (rquickjs-sys 0.12).
const QUICKJS: &str = "0.15.0";
const JAVASCRIPT: Package = Package {
    name: "componentize-qjs",
    version: "0.4.5",
    files: &[(
        "quickjs.wasm",
        "prebuilt/runtime-sync.wasm",
        "25703f010b80efb806f9c35daf9ee6524ad60320c9781b0bae4e234264f8dac5",
    )],
    stubs: QUICKJS_STUBS,
    lock: include_str!("fetch/quickjs.lock"),
};

/// The interpreter in it says so itself (`sys.version`).
const CPYTHON: &str = "3.14.0";
const PYTHON: Package = Package {
    name: "componentize-py",
    version: "0.25.1",
    files: &[
        // In the order in which they are linked.
        (
            "libc.zst",
            "libc.so.zst",
            "a47a3d51c351b7e64a6d757d478f63d5c67b4960a5262f3d0979943e3105cf7c",
        ),
        (
            "signal.zst",
            "libwasi-emulated-signal.so.zst",
            "d068a4b77a2a71d0a8c473fac1009a189370bafb407415ae1c5884614273a934",
        ),
        (
            "getpid.zst",
            "libwasi-emulated-getpid.so.zst",
            "3a9aabb5b77f622b36b31f6d66e27a80500ddffb793b69eaf12499ee8899bfcb",
        ),
        (
            "clocks.zst",
            "libwasi-emulated-process-clocks.so.zst",
            "421ef01ec3b17760417d24aa1106f20c1eca75818270a491bfe58ab7a935ab21",
        ),
        (
            "python.zst",
            "libpython3.14.so.zst",
            "3c7ff4c4bec51ec4f357900bd576e4b658d834d0989a613ea05ed555b8018428",
        ),
        (
            "library.zst",
            "python-lib.tar.zst",
            "c32ad592cdfb947b6290092589b6491938a384eb00559509daa664d2c73c2354",
        ),
    ],
    stubs: CPYTHON_STUBS,
    lock: include_str!("fetch/python.lock"),
};

const QUICKJS_STUBS: &[(&str, &str, &[&str])] = &[
    ("anyhow", "1.0.0", &[]),
    ("bytes", "1.0.0", &[]),
    ("indexmap", "2.0.0", &[]),
    ("oxc_resolver", "11.21.0", &[]),
    ("tempfile", "3.0.0", &[]),
    ("tokio", "1.0.0", &["rt", "macros"]),
    ("wasi-preview1-component-adapter-provider", "47.0.0", &[]),
    ("wasm-compose", "0.258.0", &[]),
    ("wasmtime", "47.0.0", &["component-model", "async"]),
    ("wasmtime-wasi", "47.0.0", &["p2", "p3"]),
    ("wasmtime-wizer", "47.0.0", &["component-model", "wasmtime"]),
    ("wit-component", "0.258.0", &["dummy-module"]),
    ("wit-dylib", "0.258.0", &[]),
    ("wit-parser", "0.258.0", &[]),
    ("flate2", "1.1.0", &[]),
    ("glob", "0.3.0", &[]),
    ("tar", "0.4.0", &[]),
    ("ureq", "3.0.0", &[]),
];

const CPYTHON_STUBS: &[(&str, &str, &[&str])] = &[
    ("anyhow", "1.0.91", &["backtrace"]),
    ("async-trait", "0.1.83", &[]),
    ("bincode", "1.3.3", &[]),
    ("bytes", "1.8.0", &[]),
    ("cap-std", "3.3.0", &[]),
    ("clap", "4.5.20", &["derive"]),
    ("component-init-transform", "0.2.0", &[]),
    ("futures", "0.3.31", &[]),
    ("heck", "0.5.0", &[]),
    ("im-rc", "15.1.0", &[]),
    ("indexmap", "2.6.0", &[]),
    ("once_cell", "1.20.2", &[]),
    ("pretty_env_logger", "0.5.0", &[]),
    ("semver", "1.0.23", &[]),
    ("serde", "1.0.213", &["derive"]),
    ("tar", "0.4.42", &[]),
    ("tempfile", "3.13.0", &[]),
    ("tokio", "1.41.0", &["macros", "rt", "rt-multi-thread", "fs"]),
    ("toml", "0.8.19", &[]),
    ("wasm-encoder", "0.245.0", &["wasmparser"]),
    ("wasmparser", "0.245.0", &[]),
    ("wasmtime", "46.0.1", &[]),
    ("wasmtime-wasi", "46.0.1", &["p3"]),
    ("wit-bindgen-core", "0.53.1", &[]),
    ("wit-component", "0.245.0", &[]),
    ("wit-dylib", "0.245.0", &[]),
    ("wit-parser", "0.245.0", &[]),
    ("zstd", "0.13.2", &[]),
    ("componentize-py-test-generator", "0.25.1", &[]),
    ("flate2", "1.1.1", &[]),
    (
        "reqwest",
        "0.12.15",
        &["blocking", "brotli", "deflate", "gzip", "zstd", "rustls-tls"],
    ),
];

const CHECKER: &str = "heddle-source-checker";
const TARGET: &str = "wasm32-wasip1";
/// The profile of everything that is built to wasm.
const PROFILE: &str = "guest";

fn main() {
    for path in [
        "build.rs",
        "nested_cargo.rs",
        "fetch/quickjs.lock",
        "fetch/python.lock",
        "typescript/src",
        "typescript/Cargo.toml",
        "typescript/Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let javascript = fetch(&JAVASCRIPT, &out.join("quickjs"));
    let python = fetch(&PYTHON, &out.join("cpython"));
    let id = format!("quickjs-ng {QUICKJS} ({} {})", JAVASCRIPT.name, JAVASCRIPT.version);
    let python_id = format!("cpython {CPYTHON} ({} {})", PYTHON.name, PYTHON.version);
    let digests: String = PYTHON.files.iter().map(|(_, _, digest)| *digest).collect();
    let python_digest = digest_of(digests.as_bytes());
    let (library, libraries) = python.split_last().expect("it has files");
    let libraries = libraries
        .iter()
        .map(|path| format!("include_bytes!({path:?}), "))
        .collect::<String>();
    let interpreter = pack(&javascript[0], &out.join("quickjs.zlib"));
    let checker = pack(&build_checker(&out), &out.join("checker.zlib"));
    let code = format!(
        "const QUICKJS_ID: &str = {id:?};\nstatic QUICKJS_WASM: &[u8] = include_bytes!({interpreter:?});\n\
         static CHECKER_WASM: &[u8] = include_bytes!({checker:?});\nconst CPYTHON_ID: &str = {python_id:?};\n\
         const CPYTHON_DIGEST: &str = {python_digest:?};\n\
         static CPYTHON_LIBRARIES: &[&[u8]] = &[{libraries}];\n\
         static CPYTHON_STANDARD_LIBRARY: &[u8] = include_bytes!({library:?});\n"
    );
    fs::write(out.join("runtimes.rs"), code).expect("OUT_DIR is writable");
}

/// Packs a file with zlib, to less than a half. CPython comes packed.
fn pack(from: &Path, to: &Path) -> PathBuf {
    let packed = fs::File::create(to).and_then(|file| {
        let mut packer = ZlibEncoder::new(file, Compression::best());
        packer.write_all(&fs::read(from)?)?;
        packer.finish()
    });
    packed.unwrap_or_else(|error| panic!("cannot pack {}: {error}", from.display()));
    to.to_owned()
}

/// The SHA-256, in hexadecimal digits.
fn digest_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes it");
        text
    })
}

/// The files of a package, copied beside a project that was made to fetch it.
fn fetch(package: &Package, project: &Path) -> Vec<PathBuf> {
    write_project(package, project);
    let directory = package_directory(package, project);
    let copy = |(name, path, expected): &(&str, &str, &str)| {
        let bytes = fs::read(directory.join(path)).expect("the package has the file");
        assert_eq!(
            digest_of(&bytes),
            *expected,
            "{} {} has another {path} than the one that was checked",
            package.name,
            package.version
        );
        let copy = project.join(name);
        fs::write(&copy, &bytes).expect("OUT_DIR is writable");
        copy
    };
    package.files.iter().map(copy).collect()
}

fn write_project(package: &Package, project: &Path) {
    let write = |path: PathBuf, text: &str| {
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("OUT_DIR is writable");
        fs::write(path, text).expect("OUT_DIR is writable");
    };
    let mut manifest = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n\n\
         [workspace]\n\n[dependencies]\n{} = \"={}\"\n\n[patch.crates-io]\n",
        package.name, package.version
    );
    write(project.join("lib.rs"), "");
    for (name, version, features) in package.stubs {
        writeln!(manifest, "{name} = {{ path = \"stubs/{name}\" }}").expect("a String takes it");
        let mut stub = format!(
            "[package]\nname = \"{name}\"\nversion = \"{version}\"\n\n[lib]\npath = \"lib.rs\"\n\n[features]\n"
        );
        for feature in *features {
            writeln!(stub, "{feature} = []").expect("a String takes it");
        }
        write(project.join("stubs").join(name).join("Cargo.toml"), &stub);
        write(project.join("stubs").join(name).join("lib.rs"), "");
    }
    write(project.join("Cargo.toml"), &manifest);
    write(project.join("Cargo.lock"), package.lock);
}

/// Where Cargo keeps the package's files, after it has fetched them if need be.
fn package_directory(package: &Package, project: &Path) -> PathBuf {
    let (name, version) = (package.name, package.version);
    let mut cargo = nested("cargo", project);
    cargo.args(["metadata", "--format-version", "1", "--locked"]);
    let output = cargo.output().expect("Cargo can be started");
    assert!(
        output.status.success(),
        "\n\nThe package {name} {version}, which carries an interpreter, could not be fetched:\n\n{}\n\
         If this machine is offline, build once with a network: Cargo keeps the package.\n",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata = String::from_utf8(output.stdout).expect("Cargo writes UTF-8");
    let end = format!("{name}-{version}/Cargo.toml");
    let path = metadata
        .split('"')
        .find(|text| text.replace("\\\\", "/").ends_with(&end))
        .unwrap_or_else(|| panic!("Cargo does not say where {name} {version} is"));
    let path = PathBuf::from(path.replace("\\\\", "\\"));
    path.parent().expect("a file has a directory").to_owned()
}

/// The checker as a WASI command.
fn build_checker(out: &Path) -> PathBuf {
    let directory = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("typescript");
    let target_dir = outer_target_dir(out).join("guests");
    let build = || {
        let mut cargo = nested("cargo", &directory);
        cargo
            .args([
                "build",
                "--locked",
                "--profile",
                PROFILE,
                "--target",
                TARGET,
                "--target-dir",
            ])
            .arg(&target_dir);
        cargo.status().is_ok_and(|status| status.success())
    };
    if !build() {
        // The likeliest reason is cured here; if it was another one, the second try says it again.
        let _ = nested("rustup", &directory).args(["target", "add", TARGET]).status();
        assert!(
            build(),
            "\n\nThe checker of scripts in {} could not be built for {TARGET}: see the messages above.\n\
             If the target is missing, install it: rustup target add {TARGET}\n",
            directory.display()
        );
    }
    // A copy, because the directory may change under a compiler that reads it.
    let copy = out.join("checker.wasm");
    let built = target_dir.join(TARGET).join(PROFILE).join(format!("{CHECKER}.wasm"));
    fs::copy(&built, &copy).unwrap_or_else(|error| panic!("cannot copy {}: {error}", built.display()));
    copy
}
