//! Requests of components, with bounds for what the host keeps of them.
//!
//! A component may create requests and never send them. wasmtime bounds their headers, but not their other parts, and a
//! component needs no grant for any of this. So these functions take the place of some of wasmtime's.

use crate::guest::{Guest, MAX_HEADERS_BYTES, MAX_RESOURCES};
use crate::web::BODY_BYTES;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
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
/// How many times as much as they count the host needs at most for headers: for many short ones, it is the map that is
/// large.
const HEADERS_TIMES: usize = 3;
/// What one request may keep.
const MAX_REQUEST_BYTES: usize = HEADERS_TIMES * MAX_HEADERS_BYTES
    + BODY_BYTES
    + MAX_METHOD_BYTES
    + MAX_SCHEME_BYTES
    + MAX_AUTHORITY_BYTES
    + MAX_PATH_BYTES;
/// What all unsent requests of a component may keep: the host does not count it as memory of the attempt, because nobody
/// tells it when such a request is dropped.
const MAX_UNSENT_BYTES: usize = 80 << 20;
const _: () = assert!(MAX_RESOURCES * MAX_REQUEST_BYTES <= MAX_UNSENT_BYTES);

type Done = (Result<(), ()>,);
type TextOf = (Resource<types::OutgoingRequest>, Option<String>);

/// Puts the bounded functions in the place of wasmtime's. The linker must allow shadowing.
pub(crate) fn shadow(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    let mut functions = linker.instance(TYPES)?;
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
         -> wasmtime::Result<(Result<Resource<types::OutgoingBody>, ()>,)> { Ok((Err(()),)) },
    )
}

fn is_longer(text: Option<&str>, bytes_max: usize) -> bool {
    text.is_some_and(|text| text.len() > bytes_max)
}
