//! The attribute macros of `heddle-sdk`, which re-exports them: see there for what they mean and for examples.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Attribute, DeriveInput, Expr, ExprLit, FnArg, Ident, ItemFn, Lit, Meta, ReturnType, Token, Type};

/// Makes a function a task's script: see `heddle::task` in the SDK.
#[proc_macro_attribute]
pub fn task(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item, expand_task)
}

/// Makes a function a consumer of scheduled messages: see `heddle::consumer` in the SDK.
#[proc_macro_attribute]
pub fn consumer(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item, expand_consumer)
}

/// Derives what a type at a script's edge needs: see `heddle::data` in the SDK.
#[proc_macro_attribute]
pub fn data(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let none: Tokens = arguments.into();
    if !none.is_empty() {
        return syn::Error::new(none.span(), "`#[heddle::data]` takes no arguments")
            .to_compile_error()
            .into();
    }
    let item = syn::parse_macro_input!(item as DeriveInput);
    quote! {
        #[derive(::heddle::serde::Serialize, ::heddle::serde::Deserialize, ::heddle::schemars::JsonSchema)]
        #[serde(crate = "::heddle::serde")]
        #[schemars(crate = "::heddle::schemars")]
        #item
    }
    .into()
}

fn expand(
    arguments: TokenStream,
    item: TokenStream,
    with: fn(&Arguments, &ItemFn) -> syn::Result<Tokens>,
) -> TokenStream {
    let arguments = syn::parse_macro_input!(arguments as Arguments);
    let function = syn::parse_macro_input!(item as ItemFn);
    let expanded = with(&arguments, &function).unwrap_or_else(|error| error.to_compile_error());
    // The function is kept in any case, so that one mistake does not look like many.
    quote!(#function #expanded).into()
}

/// What stands in the parentheses of the attribute.
#[derive(Default)]
struct Arguments {
    defaults: Option<Expr>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut arguments = Self::default();
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            if name != "defaults" {
                return Err(syn::Error::new(
                    name.span(),
                    "only `defaults = <expression>` is known here",
                ));
            }
            if arguments.defaults.is_some() {
                return Err(syn::Error::new(name.span(), "`defaults` stands here twice"));
            }
            input.parse::<Token![=]>()?;
            arguments.defaults = Some(input.parse()?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(arguments)
    }
}

fn expand_task(arguments: &Arguments, function: &ItemFn) -> syn::Result<Tokens> {
    check_signature(
        function,
        0..=1,
        "a task is `fn(params: Params) -> Result<Output, Failure>`",
    )?;
    let name = &function.sig.ident;
    let params = match function.sig.inputs.first() {
        Some(FnArg::Typed(argument)) if !is_unit(&argument.ty) => Some(&argument.ty),
        _ => None,
    };
    let schema = params.map(|params| quote!(description.set_params::<#params>();));
    let call = match (params, function.sig.inputs.is_empty()) {
        (Some(params), _) => quote!(#name(::heddle::script::read_params::<#params>(params)?)),
        (None, true) => quote!(#name()),
        (None, false) => quote!(#name(())),
    };
    let describe = describe(arguments, &function.attrs, schema);
    Ok(quote! {
        /// This script, as Heddle calls it.
        pub struct HeddleTask;

        impl ::heddle::script::Task for HeddleTask {
            #describe

            #[allow(unused_variables, reason = "a task without parameters ignores them")]
            fn run(params: &str) -> ::core::result::Result<::std::string::String, ::heddle::Failure> {
                ::heddle::script::write_output(&#call?)
            }
        }

        #[cfg(target_arch = "wasm32")]
        ::heddle::bindings::task::export_task!(HeddleTask with_types_in ::heddle::bindings::task);
    })
}

fn expand_consumer(arguments: &Arguments, function: &ItemFn) -> syn::Result<Tokens> {
    let shape = "a consumer is `fn(topic: &str, batch: Vec<Message>) -> Vec<Result<(), Failure>>`";
    check_signature(function, 2..=2, shape)?;
    if let Some(defaults) = &arguments.defaults {
        return Err(syn::Error::new(
            defaults.span(),
            "a consumer has no parameters, so it has no defaults",
        ));
    }
    let name = &function.sig.ident;
    let describe = describe(arguments, &function.attrs, None);
    Ok(quote! {
        /// This script, as Heddle calls it.
        pub struct HeddleConsumer;

        impl ::heddle::script::Consumer for HeddleConsumer {
            #describe

            fn handle(
                topic: &str,
                batch: ::std::vec::Vec<::heddle::Message>,
            ) -> ::core::result::Result<::heddle::script::Outcomes, ::heddle::Failure> {
                ::heddle::script::IntoOutcomes::into_outcomes(#name(topic, batch))
            }
        }

        #[cfg(target_arch = "wasm32")]
        ::heddle::bindings::consumer::export_consumer!(HeddleConsumer with_types_in ::heddle::bindings::consumer);
    })
}

fn describe(arguments: &Arguments, attributes: &[Attribute], schema: Option<Tokens>) -> Tokens {
    let text = doc_comment(attributes);
    let defaults = arguments
        .defaults
        .as_ref()
        .map(|defaults| quote!(description.set_defaults(&(#defaults));));
    quote! {
        #[allow(unused_mut, reason = "not every script has parameters")]
        fn describe() -> ::heddle::script::Description {
            let mut description = ::heddle::script::Description::new(#text);
            #schema
            #defaults
            description
        }
    }
}

fn check_signature(function: &ItemFn, inputs: std::ops::RangeInclusive<usize>, shape: &str) -> syn::Result<()> {
    let signature = &function.sig;
    let wrong = |span: proc_macro2::Span, what: &str| Err(syn::Error::new(span, format!("{what}: {shape}")));
    if let Some(asyncness) = signature.asyncness {
        return wrong(
            asyncness.span(),
            "a script is not async; Heddle runs many of them at once",
        );
    }
    if !signature.generics.params.is_empty() {
        return wrong(signature.generics.span(), "a script is not generic");
    }
    if let Some(FnArg::Receiver(receiver)) = signature.inputs.first() {
        return wrong(receiver.span(), "a script is a free function");
    }
    if !inputs.contains(&signature.inputs.len()) {
        return wrong(signature.inputs.span(), "wrong number of arguments");
    }
    if matches!(signature.output, ReturnType::Default) {
        return wrong(signature.span(), "the outcome is missing");
    }
    Ok(())
}

fn is_unit(ty: &Type) -> bool {
    matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty())
}

/// The doc comment's text: its lines without the one space that stands before each.
fn doc_comment(attributes: &[Attribute]) -> String {
    let lines: Vec<String> = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
                Expr::Lit(ExprLit {
                    lit: Lit::Str(text), ..
                }) => {
                    let line = text.value();
                    Some(line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned())
                }
                _ => None,
            },
            _ => None,
        })
        .collect();
    lines.join("\n").trim().to_owned()
}
