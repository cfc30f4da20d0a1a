//! Checks a text before anything evaluates it: its syntax, and what it imports.

use crate::erase;
use crate::fault::Fault;
use crate::schema;
use oxc_allocator::Allocator;
use oxc_ast::ast::{ImportOrExportKind, Program, Statement};
use oxc_parser::Parser;
use oxc_span::SourceType;
use serde::Serialize;
use serde_json::Value;

/// What scripts may import.
const MODULES: &[&str] = &["heddle:task"];
/// The byte order mark that some editors begin a file with.
const BOM: char = '\u{feff}';

/// A text that may be evaluated.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// JavaScript, each character where it was.
    pub code: String,
    /// What the types say of the params: a JSON Schema.
    pub params: Option<Value>,
}

/// Checks a text in `javascript` or `typescript`.
pub fn check(bytes: &[u8], language: &str) -> Result<Checked, Fault> {
    let source = match std::str::from_utf8(bytes) {
        Ok(source) => source,
        Err(error) => {
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            return Err(Fault::at(&valid, valid.len(), "the text is not UTF-8"));
        }
    };
    let source = source.strip_prefix(BOM).unwrap_or(source);
    if let Some(at) = source.find('\0') {
        return Err(Fault::at(source, at, "the text has the character U+0000"));
    }
    if source.trim().is_empty() {
        return Err(Fault::new("the text is empty"));
    }
    let typed = language == "typescript";
    let kind = if typed {
        SourceType::ts().with_module(true)
    } else {
        SourceType::mjs()
    };
    let allocator = Allocator::default();
    let parsed = Parser::new(&allocator, source, kind).parse();
    if let Some(error) = parsed.diagnostics.errors().next() {
        let mut message = error.message.to_string();
        if let Some(help) = &error.help {
            message = format!("{message} ({help})");
        }
        return Err(match error.labels.first() {
            Some(label) => Fault::at(source, label.offset() as usize, message),
            None => Fault::new(message),
        });
    }
    if parsed.panicked {
        return Err(Fault::new("the text cannot be parsed"));
    }
    check_imports(source, &parsed.program)?;
    // A name that is computed is refused when it is imported.
    for import in parsed.module_record.dynamic_imports.iter() {
        let at = import.module_request.start as usize;
        if let Some(name) = literal(&source[at..import.module_request.end as usize]) {
            check_import(source, name, at)?;
        }
    }
    if typed {
        Ok(Checked {
            code: erase::erase(source, &parsed.program)?,
            params: schema::params(&parsed.program),
        })
    } else {
        Ok(Checked {
            code: source.to_owned(),
            params: None,
        })
    }
}

fn check_imports(source: &str, program: &Program<'_>) -> Result<(), Fault> {
    for statement in &program.body {
        let (module, kind) = match statement {
            Statement::ImportDeclaration(import) => (&import.source, import.import_kind),
            Statement::ExportAllDeclaration(export) => (&export.source, export.export_kind),
            Statement::ExportFromDeclaration(export) => (&export.source, export.export_kind),
            _ => continue,
        };
        if kind != ImportOrExportKind::Type {
            check_import(source, module.value.as_str(), module.span.start as usize)?;
        }
    }
    Ok(())
}

fn check_import(source: &str, name: &str, at: usize) -> Result<(), Fault> {
    if MODULES.contains(&name) {
        return Ok(());
    }
    let message = format!(
        "`{name}` cannot be imported: a script that is text is one file, and may import `heddle:task` alone \
         (`heddle script build` makes one component of several files and packages)"
    );
    Err(Fault::at(source, at, message))
}

/// The text that a string literal stands for, if it has no escapes and no `${}`.
fn literal(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\'' | '`'))?;
    let inner = text[1..].strip_suffix(quote)?;
    (!inner.contains([quote, '\\']) && !inner.contains("${")).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: &str) -> Fault {
        check(source.as_bytes(), "typescript").expect_err(source)
    }

    #[test]
    fn faults_have_a_position() {
        let fault = refused("const a = 1;\nconst b = ;\n");
        assert_eq!((fault.line, fault.column), (Some(2), Some(11)), "{fault:?}");
        let fault = refused("\nimport fs from \"node:fs\";");
        assert!(fault.message.contains("`node:fs` cannot be imported"), "{fault:?}");
        assert_eq!((fault.line, fault.column), (Some(2), Some(16)));
        let fault = refused("async () => {\n  await import('node:fs');\n}");
        assert!(fault.message.contains("`node:fs` cannot be imported"), "{fault:?}");
        assert_eq!((fault.line, fault.column), (Some(2), Some(16)));
        assert!(refused("let a = '\0'").message.contains("U+0000"));
        assert!(refused(" \n").message.contains("empty"));
        let fault = check(b"let a;\n\"\xff\"", "javascript").unwrap_err();
        assert_eq!(
            (fault.message.as_str(), fault.line, fault.column),
            ("the text is not UTF-8", Some(2), Some(2))
        );
        assert_eq!(check(b"let a: number = 1", "javascript").unwrap_err().line, Some(1));
    }

    #[test]
    fn what_may_be_imported() {
        for source in [
            "import { Fatal } from \"heddle:task\";",
            "import type { Context } from \"./elsewhere\";",
            "\u{feff}export default function run() {}",
            "import(`heddle:task`); import('node:' + 'fs'); import(name); import(`${name}`)",
        ] {
            assert!(check(source.as_bytes(), "typescript").is_ok(), "{source}");
        }
    }
}
