use super::super::{calls, own_runtime, pending, python, runtime};
use super::*;
use crate::engine::bare_engine;
use crate::guest::Guest;
use std::fmt::Write as _;
use wasm_encoder::reencode::{Reencode, RoundtripReencoder};
use wasm_encoder::{EntityType, ImportSection, Module as Encoded, TypeSection};
use wasmparser::{Parser, Payload, TypeRef};
use wasmtime::{Engine, Linker, Module};

/// What a runtime needs from the host, as it was recorded with the interface's number.
const INTERFACE_WRITTEN: &str = include_str!("interface.txt");

/// A bundle whose bytes were recorded when the form was made.
fn small() -> RuntimeBundle {
    let parts = [
        ("code", &b"\0asm"[..]),
        ("memory", b"mem"),
        ("module heddle:main", b"1;"),
    ];
    RuntimeBundle {
        head: Head {
            interface: 1,
            language: Language::JavaScript,
            interpreter: "quickjs-ng 0.15.0".into(),
            numbers: [("heap".to_owned(), 7), ("stack".to_owned(), 3)].into(),
            parts: parts
                .iter()
                .map(|(name, part)| ((*name).to_owned(), part.len() as u64))
                .collect(),
        },
        parts: parts.iter().map(|(_, part)| Bytes::from_static(part)).collect(),
    }
}

fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// All later builds read what is kept in databases: the written bytes are the recorded ones, and the recorded ones can
/// be read.
#[test]
fn the_form_is_the_one_that_was_written_down() {
    const WRITTEN: &str = include_str!("form.txt");
    let bytes: Vec<u8> = small().pieces().flatten().collect();
    assert_eq!(hex(bytes), WRITTEN.split_whitespace().collect::<String>());
    assert_eq!(small().tag(), "8747090ff3b1dad2");
    let read = RuntimeBundle::read(&of_hex(WRITTEN).into()).unwrap();
    assert_eq!(read.text("module heddle:main").unwrap(), "1;");
    assert_eq!(read.texts("module ").unwrap().len(), 1);
    assert_eq!((read.number("heap").unwrap(), read.tag()), (7, small().tag()));
    assert!(read.number("other").is_err() && read.part("other").is_err());
}

#[test]
fn what_is_packed_is_unpacked_and_nothing_else_is() {
    let (packed, tag) = (small().pack(), small().tag());
    assert_eq!(RuntimeBundle::unpack(&packed, &tag).unwrap().tag(), tag);
    let refusal = |packed: &[u8], tag: &str| RuntimeBundle::unpack(packed, tag).unwrap_err();
    // Whatever byte is changed: it is noticed.
    for at in 0..packed.len() {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x10;
        if let Ok(read) = RuntimeBundle::unpack(&damaged, &tag) {
            assert_eq!(read.tag(), tag, "{at}");
        }
    }
    assert!(refusal(&packed[..packed.len() - 3], &tag).contains("damaged"));
    assert!(
        refusal(&packed, "0000000000000000").contains(&tag),
        "it says which it is"
    );
    assert!(refusal(b"", &tag).contains("damaged"));
    let large = ruzstd::encoding::compress_to_vec(
        std::io::repeat(0).take(MAX_BYTES + 10),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    assert!(refusal(&large, &tag).contains("more than"));
}

#[test]
fn what_this_program_cannot_take_up_is_said_in_a_line() {
    let refusal = |bytes: Vec<u8>| RuntimeBundle::read(&bytes.into()).unwrap_err();
    let bytes: Vec<u8> = small().pieces().flatten().collect();
    let other = small().with_interface(7);
    assert_eq!(
        RuntimeBundle::unpack(&other.pack(), &other.tag()).unwrap_err(),
        "it needs version 7 of the host interface, but this version of Heddle has 1 to 4. A newer version of Heddle \
         stored it: replace this node by that version"
    );
    assert_eq!(
        lacks_interface(2, &(3..=3)).unwrap(),
        "it needs version 2 of the host interface, but this version of Heddle has 3. An older version of Heddle \
         stored it: retire it with `heddle runtime retire`"
    );
    assert_eq!(lacks_interface(3, &(3..=4)), None);
    let mut form = bytes.clone();
    form[8] = 9;
    assert_eq!(
        refusal(form),
        "it has format 9, but this version of Heddle reads format 1. A newer version of Heddle stored it: replace this \
         node by that version"
    );
    assert!(refusal(bytes[..bytes.len() - 1].to_vec()).contains("incomplete"));
    assert!(refusal(bytes[..40].to_vec()).contains("incomplete"));
    assert!(refusal(b"something else altogether".to_vec()).contains("not a runtime"));
    let mut long = small();
    long.head.parts[0].1 = u64::MAX;
    assert!(refusal(long.pieces().flatten().collect()).contains("incomplete"));
}

/// Only a runtime of a newer program cannot be retired here: retiring one of an older program is the way out.
#[test]
fn only_what_is_newer_needs_a_newer_program() {
    let newer = needs_newer_program(INTERFACE + 1).unwrap();
    assert!(newer.contains("replace this node"), "{newer}");
    assert_eq!((needs_newer_program(INTERFACE), needs_newer_program(0)), (None, None));
    assert!(has_interface(INTERFACE) && !has_interface(INTERFACE + 1));
}

/// A module that imports these functions, and has no code: the result of linking it is the result for them.
fn stub(types: &TypeSection, imports: &[(String, String, u32)]) -> Vec<u8> {
    let mut section = ImportSection::new();
    for (module, name, of_type) in imports {
        section.import(module, name, EntityType::Function(*of_type));
    }
    let mut module = Encoded::new();
    module.section(types).section(&section);
    module.finish()
}

/// The imports of a module, and whether the host has them: those that it does not have are traps, for what the
/// interpreter never does.
fn imports(engine: &Engine, code: &[u8], linker: impl Fn(&Module) -> Linker<Guest>) -> Vec<String> {
    let (mut types, mut functions) = (TypeSection::new(), Vec::new());
    let mut signatures = Vec::new();
    for payload in Parser::new(0).parse_all(code) {
        match payload.unwrap() {
            Payload::TypeSection(section) => {
                for of_type in section.clone().into_iter_err_on_gc_types() {
                    signatures.push(of_type.unwrap().to_string());
                }
                RoundtripReencoder.parse_type_section(&mut types, section).unwrap();
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.unwrap();
                    let own = matches!(import.module, "env" | "code") || import.module.starts_with("GOT.");
                    if let (TypeRef::Func(of_type), false) = (import.ty, own) {
                        functions.push((import.module.to_owned(), import.name.to_owned(), of_type));
                    }
                }
            }
            _ => {}
        }
    }
    let all = Module::new(engine, stub(&types, &functions)).unwrap();
    let linker = linker(&all);
    let mut lines: Vec<String> = functions
        .iter()
        .map(|import| {
            let alone = Module::new(engine, stub(&types, std::slice::from_ref(import))).unwrap();
            let has = linker.instantiate_pre(&alone).is_ok();
            let (module, name, of_type) = import;
            let signature = &signatures[*of_type as usize];
            format!("{} {module} {name} {signature}", if has { "host" } else { "trap" })
        })
        .collect();
    lines.sort();
    lines
}

/// All that bundles of this program need from the host.
fn interface() -> String {
    let engine = bare_engine().unwrap();
    let mut text = format!("interface {INTERFACE}\n");
    let javascript = RuntimeBundle::own(Language::JavaScript).unwrap();
    let linker = |_: &Module| runtime::linker(&engine).unwrap();
    let mut lines = imports(&engine, &runtime::code_of(&javascript).unwrap(), linker);
    lines.extend(imports(&engine, &runtime::glue_of(&javascript).unwrap(), linker));
    let mut section = |title: &str, lines: Vec<String>| {
        let _ = writeln!(text, "\n# {title}");
        lines.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    };
    section("javascript", lines);
    let python = RuntimeBundle::own(Language::Python).unwrap();
    let linker = |code: &Module| python::linker(&engine, code).unwrap();
    section("python", imports(&engine, &python::code_of(&python).unwrap(), linker));
    section(
        "operations by number",
        calls::numbers()
            .chain(python::numbers())
            .map(|(name, number)| format!("{number} {name}"))
            .collect(),
    );
    section("operations of `sync`", calls::operations());
    section("operations of `start` and `wait`", pending::operations());
    for bundle in [&javascript, &python] {
        let parts = bundle.head.parts.iter().map(|(name, _)| format!("part {name}"));
        let numbers = bundle.head.numbers.keys().map(|name| format!("number {name}"));
        section(
            &format!("parts of {}", bundle.head.language.as_str()),
            parts.chain(numbers).collect(),
        );
    }
    text
}

/// Kept runtimes need from later hosts what they needed when they were made. Whoever changes this list, or the meaning
/// of something on it, raises `INTERFACE`; if the host still supports all that it did, `INTERFACES` begins where it
/// began.
#[test]
fn the_interface_is_the_one_that_was_written_down() {
    let now = interface();
    assert!(
        now == INTERFACE_WRITTEN,
        "what runtimes ask of the host has changed: raise `INTERFACE`, and write down:\n{now}"
    );
}

/// Two programs of one source have one runtime, and every time.
#[test]
fn a_runtime_has_one_tag() {
    for language in [Language::JavaScript, Language::Python] {
        let bundle = RuntimeBundle::own(language).unwrap();
        assert_eq!(bundle.tag(), RuntimeBundle::own(language).unwrap().tag());
        assert_eq!(own_runtime(language).unwrap(), &bundle.id());
        let packed = bundle.pack();
        println!("{}: {} bytes packed", bundle.id(), packed.len());
        assert_eq!(
            RuntimeBundle::unpack(&packed, &bundle.tag()).unwrap().tag(),
            bundle.tag()
        );
        let other = bundle.with_more("memory", "");
        assert_eq!(other.tag(), own_runtime(language).unwrap().tag);
    }
    assert_eq!(
        own_runtime(Language::TypeScript).unwrap(),
        own_runtime(Language::JavaScript).unwrap()
    );
}
