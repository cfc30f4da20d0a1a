//! TypeScript without its types.
//!
//! What is erased becomes spaces, so that every character that stays keeps its line and column, and traces need no map.
//! What TypeScript would have to *translate* (enums, namespaces with values, parameter properties, decorators) is
//! refused: it is what TypeScript's `erasableSyntaxOnly` refuses, and Node.js.

use crate::fault::Fault;
use oxc_ast::ast::*;
use oxc_ast_visit::{Visit, walk};
use oxc_span::{GetSpan, Span};
use oxc_syntax::scope::ScopeFlags;

/// The same text without types.
pub fn erase(source: &str, program: &Program<'_>) -> Result<String, Fault> {
    let mut eraser = Eraser {
        source,
        erased: Vec::new(),
        put: Vec::new(),
        fault: None,
    };
    eraser.visit_program(program);
    match eraser.fault {
        Some((at, message)) => Err(Fault::at(source, at as usize, message)),
        None => Ok(eraser.text()),
    }
}

struct Eraser<'s> {
    source: &'s str,
    /// Bytes from (inclusive) to (exclusive).
    erased: Vec<(u32, u32)>,
    /// Characters that take the place of a byte, erased or not.
    put: Vec<(u32, char)>,
    fault: Option<(u32, String)>,
}

impl Eraser<'_> {
    fn text(mut self) -> String {
        self.erased.sort_unstable();
        self.put.sort_unstable();
        let mut text = String::with_capacity(self.source.len());
        let mut ranges = self.erased.into_iter().peekable();
        let mut put = self.put.into_iter().peekable();
        let mut until = 0;
        for (at, character) in self.source.char_indices() {
            let at = at as u32;
            while let Some((_, end)) = ranges.next_if(|(start, _)| *start <= at) {
                until = until.max(end);
            }
            let other = put.next_if(|(offset, _)| *offset <= at).map(|(_, other)| other);
            while put.next_if(|(offset, _)| *offset <= at).is_some() {}
            text.push(match other {
                Some(other) => other,
                None if at < until && !matches!(character, '\n' | '\r' | '\u{2028}' | '\u{2029}') => ' ',
                None => character,
            });
        }
        text
    }

    fn refuse(&mut self, span: Span, what: &str) {
        if self.fault.is_none() {
            let message = format!(
                "{what} cannot be erased: of TypeScript, a script may use what disappears when it runs \
                 (the compiler's `erasableSyntaxOnly`)"
            );
            self.fault = Some((span.start, message));
        }
    }

    fn erase(&mut self, from: u32, to: u32) {
        if from < to {
            self.erased.push((from, to));
        }
    }

    /// Erases a statement or a class element. A `;` stays, so that what comes before and behind does not become one.
    fn erase_statement(&mut self, span: Span) {
        self.erase(span.start, span.end);
        self.put.push((span.start, ';'));
    }

    fn between(&self, from: u32, to: u32) -> &str {
        self.source.get(from as usize..to as usize).unwrap_or_default()
    }

    /// Erases a mark (`?`, `!`) that stands between two places, comments aside.
    fn erase_mark(&mut self, from: u32, to: u32, mark: char) {
        if let Some(at) = self.between(from, to).find(mark) {
            self.erase(from + at as u32, from + at as u32 + 1);
        }
    }

    /// Erases words that stand before a class element's key.
    fn erase_words(&mut self, from: u32, to: u32, words: &[&str]) {
        let text = self.between(from, to).to_owned();
        let mut at = 0;
        for word in text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$') {
            if words.contains(&word) {
                self.erase(from + at as u32, from + (at + word.len()) as u32);
            }
            at += word.len();
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }

    /// Erases from the end of an expression to the end of what is said of its type.
    fn erase_behind(&mut self, expression: Span, whole: Span) {
        self.erase(expression.end, whole.end);
        // `a as B` and then, on a line of its own, `(c)`: two statements, which without the type are a call.
        let rest = self.between(whole.end, self.source.len() as u32);
        let next = rest.trim_start();
        let gap = &rest[..rest.len() - next.len()];
        if gap.contains('\n') && next.starts_with(['(', '[', '`']) && expression.end < whole.end {
            self.put.push((expression.end, ';'));
        }
    }

    fn decorators(&mut self, decorators: &[Decorator<'_>]) {
        if let Some(first) = decorators.first() {
            self.refuse(first.span, "a decorator");
        }
    }

    /// The end of the class element's decorators and the beginning of its key.
    fn modifiers(&mut self, element: Span, key: Span) {
        const WORDS: &[&str] = &["public", "private", "protected", "override", "readonly", "declare", "abstract"];
        self.erase_words(element.start, key.start, WORDS);
    }

    /// Erases a member of a list, and the comma behind it.
    fn erase_member(&mut self, span: Span) {
        let rest = self.between(span.end, self.source.len() as u32);
        let comma = rest.trim_start();
        let gap = (rest.len() - comma.len()) as u32;
        let end = if comma.starts_with(',') { span.end + gap + 1 } else { span.end };
        self.erase(span.start, end);
    }

    /// The words of a function that is only declared, with what stands before it.
    fn is_declared(function: &Function<'_>) -> bool {
        function.declare || function.body.is_none()
    }

    /// Where a binding ends before its type.
    fn binding_mark(&mut self, binding: Span, until: u32, mark: char) {
        self.erase_mark(binding.end, until, mark);
    }
}

impl<'a> Visit<'a> for Eraser<'_> {
    fn visit_ts_type_annotation(&mut self, it: &TSTypeAnnotation<'a>) {
        self.erase(it.span.start, it.span.end);
    }

    fn visit_ts_type_parameter_declaration(&mut self, it: &TSTypeParameterDeclaration<'a>) {
        self.erase(it.span.start, it.span.end);
    }

    fn visit_ts_type_parameter_instantiation(&mut self, it: &TSTypeParameterInstantiation<'a>) {
        self.erase(it.span.start, it.span.end);
    }

    fn visit_ts_this_parameter(&mut self, it: &TSThisParameter<'a>) {
        self.erase_member(it.span);
    }

    fn visit_ts_type_alias_declaration(&mut self, it: &TSTypeAliasDeclaration<'a>) {
        self.erase_statement(it.span);
    }

    fn visit_ts_interface_declaration(&mut self, it: &TSInterfaceDeclaration<'a>) {
        self.erase_statement(it.span);
    }

    fn visit_ts_global_declaration(&mut self, it: &TSGlobalDeclaration<'a>) {
        self.erase_statement(it.span);
    }

    fn visit_ts_external_module_declaration(&mut self, it: &TSExternalModuleDeclaration<'a>) {
        self.erase_statement(it.span);
    }

    fn visit_ts_namespace_declaration(&mut self, it: &TSNamespaceDeclaration<'a>) {
        if it.declare {
            self.erase_statement(it.span);
        } else {
            self.refuse(it.span, "a namespace");
        }
    }

    fn visit_ts_enum_declaration(&mut self, it: &TSEnumDeclaration<'a>) {
        if it.declare {
            self.erase_statement(it.span);
        } else {
            self.refuse(it.span, "an enum");
        }
    }

    fn visit_ts_import_equals_declaration(&mut self, it: &TSImportEqualsDeclaration<'a>) {
        self.refuse(it.span, "`import … =`");
    }

    fn visit_ts_export_assignment(&mut self, it: &TSExportAssignment<'a>) {
        self.refuse(it.span, "`export =`");
    }

    fn visit_ts_namespace_export_declaration(&mut self, it: &TSNamespaceExportDeclaration<'a>) {
        self.erase_statement(it.span);
    }

    fn visit_ts_as_expression(&mut self, it: &TSAsExpression<'a>) {
        self.visit_expression(&it.expression);
        self.erase_behind(it.expression.span(), it.span);
    }

    fn visit_ts_satisfies_expression(&mut self, it: &TSSatisfiesExpression<'a>) {
        self.visit_expression(&it.expression);
        self.erase_behind(it.expression.span(), it.span);
    }

    fn visit_ts_non_null_expression(&mut self, it: &TSNonNullExpression<'a>) {
        self.visit_expression(&it.expression);
        self.erase(it.expression.span().end, it.span.end);
    }

    fn visit_ts_type_assertion(&mut self, it: &TSTypeAssertion<'a>) {
        self.erase(it.span.start, it.expression.span().start);
        self.visit_expression(&it.expression);
    }

    fn visit_import_declaration(&mut self, it: &ImportDeclaration<'a>) {
        if it.import_kind == ImportOrExportKind::Type {
            self.erase_statement(it.span);
        } else {
            walk::walk_import_declaration(self, it);
        }
    }

    fn visit_import_specifier(&mut self, it: &ImportSpecifier<'a>) {
        if it.import_kind == ImportOrExportKind::Type {
            self.erase_member(it.span);
        }
    }

    fn visit_export_named_declaration(&mut self, it: &ExportNamedDeclaration<'a>) {
        if it.export_kind == ImportOrExportKind::Type {
            self.erase_statement(it.span);
        } else {
            walk::walk_export_named_declaration(self, it);
        }
    }

    fn visit_export_from_declaration(&mut self, it: &ExportFromDeclaration<'a>) {
        if it.export_kind == ImportOrExportKind::Type {
            self.erase_statement(it.span);
        } else {
            walk::walk_export_from_declaration(self, it);
        }
    }

    fn visit_export_all_declaration(&mut self, it: &ExportAllDeclaration<'a>) {
        if it.export_kind == ImportOrExportKind::Type {
            self.erase_statement(it.span);
        }
    }

    fn visit_export_specifier(&mut self, it: &ExportSpecifier<'a>) {
        if it.export_kind == ImportOrExportKind::Type {
            self.erase_member(it.span);
        }
    }

    fn visit_export_declaration(&mut self, it: &ExportDeclaration<'a>) {
        let gone = match &it.declaration {
            Declaration::TSTypeAliasDeclaration(_) | Declaration::TSInterfaceDeclaration(_) => true,
            Declaration::FunctionDeclaration(function) => Self::is_declared(function),
            Declaration::VariableDeclaration(variables) => variables.declare,
            Declaration::ClassDeclaration(class) => class.declare,
            Declaration::TSEnumDeclaration(one) => one.declare,
            Declaration::TSNamespaceDeclaration(one) => one.declare,
            _ => false,
        };
        if gone {
            self.erase_statement(it.span);
        } else {
            walk::walk_export_declaration(self, it);
        }
    }

    fn visit_export_default_declaration(&mut self, it: &ExportDefaultDeclaration<'a>) {
        let gone = match &it.declaration {
            ExportDefaultDeclarationKind::FunctionDeclaration(function) => Self::is_declared(function),
            ExportDefaultDeclarationKind::TSInterfaceDeclaration(_) => true,
            _ => false,
        };
        if gone {
            self.erase_statement(it.span);
        } else {
            walk::walk_export_default_declaration(self, it);
        }
    }

    fn visit_function(&mut self, it: &Function<'a>, flags: ScopeFlags) {
        if Self::is_declared(it) {
            self.erase_statement(it.span);
        } else {
            walk::walk_function(self, it, flags);
        }
    }

    fn visit_arrow_function_expression(&mut self, it: &ArrowFunctionExpression<'a>) {
        walk::walk_arrow_function_expression(self, it);
        // No line may break between `)` and `=>`: the parenthesis moves to the end of the type.
        if let Some(kind) = &it.return_type
            && self.between(kind.span.start, kind.span.end).contains('\n')
        {
            let close = it.params.span.end.saturating_sub(1);
            if self.between(close, close + 1) == ")" {
                self.erase(close, close + 1);
                let last = self.between(kind.span.start, kind.span.end).char_indices().next_back();
                if let Some((at, _)) = last {
                    self.put.push((kind.span.start + at as u32, ')'));
                }
            }
        }
    }

    fn visit_formal_parameter(&mut self, it: &FormalParameter<'a>) {
        self.decorators(&it.decorators);
        if it.accessibility.is_some() || it.readonly || it.r#override {
            self.refuse(it.span, "a parameter property");
        }
        if it.optional {
            let end = it.type_annotation.as_ref().map_or(it.span.end, |kind| kind.span.start);
            self.binding_mark(it.pattern.span(), end.max(it.pattern.span().end), '?');
        }
        walk::walk_formal_parameter(self, it);
    }

    fn visit_variable_declaration(&mut self, it: &VariableDeclaration<'a>) {
        if it.declare {
            self.erase_statement(it.span);
        } else {
            walk::walk_variable_declaration(self, it);
        }
    }

    fn visit_variable_declarator(&mut self, it: &VariableDeclarator<'a>) {
        if it.definite
            && let Some(kind) = &it.type_annotation
        {
            self.binding_mark(it.id.span(), kind.span.start, '!');
        }
        walk::walk_variable_declarator(self, it);
    }

    fn visit_class(&mut self, it: &Class<'a>) {
        self.decorators(&it.decorators);
        if it.declare {
            self.erase_statement(it.span);
            return;
        }
        if it.r#abstract {
            self.erase_words(it.span.start, it.id.as_ref().map_or(it.body.span.start, |id| id.span.start), &["abstract"]);
        }
        if let (Some(first), Some(last)) = (it.implements.first(), it.implements.last()) {
            let before = self.between(it.span.start, first.span.start);
            if let Some(word) = before.rfind("implements") {
                self.erase(it.span.start + word as u32, last.span.end);
            }
        }
        walk::walk_class(self, it);
    }

    // Erased with the words before them.
    fn visit_ts_class_implements(&mut self, _: &TSClassImplements<'a>) {}

    fn visit_ts_index_signature(&mut self, it: &TSIndexSignature<'a>) {
        self.erase_statement(it.span);
    }

    fn visit_method_definition(&mut self, it: &MethodDefinition<'a>) {
        self.decorators(&it.decorators);
        if it.r#type == MethodDefinitionType::TSAbstractMethodDefinition || it.value.body.is_none() {
            self.erase_statement(it.span);
            return;
        }
        self.modifiers(it.span, it.key.span());
        if it.optional {
            self.erase_mark(it.key.span().end, it.value.params.span.start, '?');
        }
        walk::walk_method_definition(self, it);
    }

    fn visit_property_definition(&mut self, it: &PropertyDefinition<'a>) {
        self.decorators(&it.decorators);
        if it.declare || it.r#type == PropertyDefinitionType::TSAbstractPropertyDefinition {
            self.erase_statement(it.span);
            return;
        }
        self.modifiers(it.span, it.key.span());
        let end = match (&it.type_annotation, &it.value) {
            (Some(kind), _) => kind.span.start,
            (None, Some(value)) => value.span().start,
            (None, None) => it.span.end,
        };
        if it.optional {
            self.erase_mark(it.key.span().end, end, '?');
        }
        if it.definite {
            self.erase_mark(it.key.span().end, end, '!');
        }
        walk::walk_property_definition(self, it);
    }

    fn visit_accessor_property(&mut self, it: &AccessorProperty<'a>) {
        self.refuse(it.span, "`accessor`");
    }
}

#[cfg(test)]
mod tests {
    use crate::check::{Checked, check};

    fn erased(source: &str) -> String {
        let Checked { code, .. } = check(source.as_bytes(), "typescript").unwrap_or_else(|fault| panic!("{source}: {fault:?}"));
        assert_eq!(code.chars().count(), source.chars().count());
        // What is left is JavaScript.
        check(code.as_bytes(), "javascript").unwrap_or_else(|fault| panic!("{code}: {fault:?}"));
        code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn types_disappear() {
        for (source, expect) in [
            ("let a: string = 'ä', b!: number;", "let a = 'ä', b ;"),
            ("function f<T>(this: X, a?: T, b: number = 1, ...c: T[]): asserts a is T {}", "function f ( a , b = 1, ...c ) {}"),
            ("type A = { a: string }\nlet a = 1", "; let a = 1"),
            ("export interface A extends B { a(): void }\nexport const a = 1", "; export const a = 1"),
            ("const a = b as unknown as C;", "const a = b ;"),
            ("const a = <C>b!.c!;", "const a = b .c ;"),
            ("const a = { x: 1 } satisfies C;", "const a = { x: 1 } ;"),
            ("import { type A, Fatal, type B } from 'heddle:task';", "import { Fatal, } from 'heddle:task';"),
            ("import type { A } from './a';\nlet a", "; let a"),
            ("abstract class A<T> extends B<T> implements C, D<T> { private readonly a?: string = 'x'; override b!: number; abstract c(): void; declare d: string; [k: string]: unknown; public async *e?(a: string): X { } constructor(a: T) { super() } f(): void; f(a?: T) {} }",
             "class A extends B { a = 'x'; b ; ; ; ; async *e (a ) { } constructor(a ) { super() } ; f(a ) {} }"),
            ("const f = async <T,>(a: T): Promise<\n T\n> => a;", "const f = async (a ) => a;"),
            ("declare const a: string;\ndeclare function g(): void;\nfunction h(a: string): void;\nfunction h(a: any) {}", "; ; ; function h(a ) {}"),
            ("const a = b as any\n(c)", "const a = b; (c)"),
            ("try {} catch (e: unknown) {}", "try {} catch (e ) {}"),
            ("f<string>(a); new M<A, B>(); const g = f<string>;", "f (a); new M (); const g = f ;"),
            ("declare global { interface A {} }\nexport type { B };\nexport {};", "; ; export {};"),
            ("for (const a of b as string[]) {}", "for (const a of b ) {}"),
            ("let a: (x: number) => string = (x) => `${x as number}`", "let a = (x) => `${x }`"),
        ] {
            assert_eq!(erased(source), expect, "{source}");
        }
    }

    #[test]
    fn what_would_have_to_be_translated_is_refused() {
        for (source, what, column) in [
            ("enum A { B }", "an enum", 1),
            ("const a = 1; namespace N { export const b = 1 }", "a namespace", 14),
            ("class A { constructor(private a: string) {} }", "a parameter property", 23),
            ("class A { @b c() {} }", "a decorator", 11),
            ("import a = require('b');", "`import … =`", 1),
        ] {
            let fault = check(source.as_bytes(), "typescript").expect_err(source);
            assert!(fault.message.starts_with(what), "{source}: {fault:?}");
            assert_eq!(fault.column, Some(column), "{source}");
        }
    }
}
