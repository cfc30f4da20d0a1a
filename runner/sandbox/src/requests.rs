//! Requests of components, with bounds for what the host keeps of them.
//!
//! A component may create requests and never send them. wasmtime bounds their headers, but not their other parts, and a
//! component needs no grant for any of this. So these functions take the place of some of wasmtime's.
//!
//! Bodies count for the attempt while they wait. The rest is small enough for all requests that there can be: nobody tells
//! the host when one is dropped, so it does not count.

use crate::guest::{Guest, MAX_HEADERS_BYTES, MAX_RESOURCES};
use crate::unsent::{Kept, Reader, Writer};
use http_body_util::BodyExt as _;
use std::sync::Arc;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, LinkerInstance, Resource};
use wasmtime_wasi::p2::DynOutputStream;
use wasmtime_wasi_http::WasiHttpView as _;
use wasmtime_wasi_http::p2::bindings::http::types;

/// The interface under its newest version, by which wasmtime links it for all versions.
const TYPES: &str = "wasi:http/types@0.2.12";
/// The longest method that is not one of the usual ones.
const MAX_METHOD_BYTES: usize = 64;
/// The longest scheme, as `http` itself bounds it.
const MAX_SCHEME_BYTES: usize = 64;
/// The longest authority: a host and a port.
const MAX_AUTHORITY_BYTES: usize = 1 << 10;
/// The longest path with its query.
const MAX_PATH_BYTES: usize = 8 << 10;
/// How much of one body waits at most: then the writer does.
const MAX_BODY_BYTES: u64 = 2 << 20;
/// Which part of what an attempt may hold one body takes at most, so that one alone makes its writer wait before it fails.
const BODY_PART: u64 = 8;
/// How many times as much as they count the host needs at most for headers: for many short ones, it is the map that is
/// large.
const HEADERS_TIMES: usize = 3;
/// What the host needs for a request itself, and for a body that keeps nothing.
const EMPTY_BYTES: usize = 4 << 10;
/// What one request may keep, without its body.
const MAX_REQUEST_BYTES: usize = HEADERS_TIMES * MAX_HEADERS_BYTES
    + EMPTY_BYTES
    + MAX_METHOD_BYTES
    + MAX_SCHEME_BYTES
    + MAX_AUTHORITY_BYTES
    + MAX_PATH_BYTES;
/// What all unsent requests of a component may keep without being counted.
const MAX_UNSENT_BYTES: usize = 64 << 20;
const _: () = assert!(MAX_RESOURCES * MAX_REQUEST_BYTES <= MAX_UNSENT_BYTES);

type Done = (Result<(), ()>,);
type TextOf = (Resource<types::OutgoingRequest>, Option<String>);
type Made<T> = (Result<Resource<T>, ()>,);

/// Puts the bounded functions in the place of wasmtime's. The linker must allow shadowing.
pub(crate) fn shadow(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    let mut functions = linker.instance(TYPES)?;
    shadow_texts(&mut functions)?;
    shadow_bodies(&mut functions)
}

fn shadow_texts(functions: &mut LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    functions.func_wrap(
        "[method]outgoing-request.set-method",
        |mut store: StoreContextMut<'_, Guest>,
         (request, method): (Resource<types::OutgoingRequest>, types::Method)|
         -> wasmtime::Result<Done> {
            if matches!(&method, types::Method::Other(text) if text.len() > MAX_METHOD_BYTES) {
                return Ok((Err(()),));
            }
            let mut http = store.data_mut().http();
            let set = types::HostOutgoingRequest::set_method(&mut http, request, method)?;
            Ok((set,))
        },
    )?;
    functions.func_wrap(
        "[method]outgoing-request.set-authority",
        |mut store: StoreContextMut<'_, Guest>, (request, authority): TextOf| -> wasmtime::Result<Done> {
            if is_longer(authority.as_deref(), MAX_AUTHORITY_BYTES) {
                return Ok((Err(()),));
            }
            let mut http = store.data_mut().http();
            let set = types::HostOutgoingRequest::set_authority(&mut http, request, authority)?;
            Ok((set,))
        },
    )?;
    functions.func_wrap(
        "[method]outgoing-request.set-path-with-query",
        |mut store: StoreContextMut<'_, Guest>, (request, path): TextOf| -> wasmtime::Result<Done> {
            if is_longer(path.as_deref(), MAX_PATH_BYTES) {
                return Ok((Err(()),));
            }
            let mut http = store.data_mut().http();
            let set = types::HostOutgoingRequest::set_path_with_query(&mut http, request, path)?;
            Ok((set,))
        },
    )
}

fn shadow_bodies(functions: &mut LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    functions.func_wrap(
        "[method]outgoing-request.body",
        |mut store: StoreContextMut<'_, Guest>, (request,): (Resource<types::OutgoingRequest>,)| {
            begin_body(store.data_mut(), &request)
        },
    )?;
    functions.func_wrap(
        "[method]outgoing-body.write",
        |mut store: StoreContextMut<'_, Guest>, (body,): (Resource<types::OutgoingBody>,)| {
            write_body(store.data_mut(), &body)
        },
    )?;
    // Trailers were never sent: the client has none. They would stay with the body until its request is dropped.
    functions.func_wrap(
        "[static]outgoing-body.finish",
        |mut store: StoreContextMut<'_, Guest>,
         (body, trailers): (Resource<types::OutgoingBody>, Option<Resource<types::Trailers>>)|
         -> wasmtime::Result<(Result<(), types::ErrorCode>,)> {
            let mut http = store.data_mut().http();
            if let Some(trailers) = trailers {
                http.table.delete(trailers)?;
            }
            match types::HostOutgoingBody::finish(&mut http, body, None) {
                Ok(()) => Ok((Ok(()),)),
                Err(error) => Ok((Err(types::Host::convert_error_code(&mut http, error)?),)),
            }
        },
    )?;
    // Nobody asks a script for a response, so what it writes would only be kept.
    functions.func_wrap(
        "[method]outgoing-response.body",
        |_: StoreContextMut<'_, Guest>,
         _: (Resource<types::OutgoingResponse>,)|
         -> wasmtime::Result<Made<types::OutgoingBody>> { Ok((Err(()),)) },
    )
}

/// Makes the body of a request, and counts what it keeps.
fn begin_body(
    guest: &mut Guest,
    request: &Resource<types::OutgoingRequest>,
) -> wasmtime::Result<Made<types::OutgoingBody>> {
    let bytes_max = MAX_BODY_BYTES.min(guest.guard.limit_bytes() / BODY_PART);
    let held = guest.guard.hold(0).map_err(wasmtime::Error::msg)?;
    let mut http = guest.http();
    let made = types::HostOutgoingRequest::body(&mut http, Resource::new_borrow(request.rep()))?;
    let Ok(made) = made else {
        return Ok((Err(()),));
    };
    let kept = Arc::new(Kept::new(held, usize::try_from(bytes_max)?));
    let request = http.table.get_mut(request)?;
    request.body = request.body.take().map(|body| {
        let kept = Arc::clone(&kept);
        let reader = Reader { body, kept, sending: 0 };
        reader.boxed_unsync()
    });
    guest.unwritten.insert(made.rep(), kept);
    Ok((Ok(made),))
}

/// The stream to which a body is written, once.
fn write_body(guest: &mut Guest, body: &Resource<types::OutgoingBody>) -> wasmtime::Result<Made<DynOutputStream>> {
    let Some(kept) = guest.unwritten.remove(&body.rep()) else {
        return Ok((Err(()),));
    };
    let table = guest.http().table;
    let Some(stream) = table.get_mut(body)?.take_output_stream() else {
        return Ok((Err(()),));
    };
    let writer: DynOutputStream = Box::new(Writer { stream, kept });
    Ok((Ok(table.push_child(writer, body)?),))
}

fn is_longer(text: Option<&str>, bytes_max: usize) -> bool {
    text.is_some_and(|text| text.len() > bytes_max)
}
