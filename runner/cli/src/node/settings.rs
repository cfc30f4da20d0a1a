//! From the options of a node to the settings of its parts.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use heddle_domain::dispatch::HORIZON_MAX;
use heddle_engine::heddle_sandbox::{CompilerCommand, SandboxConfig};
use heddle_engine::{DispatchConfig, NotifyConfig, ShortWays};
use heddle_http::HttpConfig;

use super::config::NodeConfig;
use crate::config::NodeOptions;
use crate::exit::usage;

/// The default of the maximum of concurrent attempts.
const DEFAULT_SLOTS: u32 = 1_000;
/// How long queued work may wait before people are told that nobody claims it.
const QUEUE_STALLED_AFTER: Duration = Duration::from_secs(600);
/// The maximum of the timeout for compiling an uploaded script.
const COMPILE_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// The settings of the sandbox.
pub(super) fn sandbox_config(options: &NodeOptions, data_dir: &Path) -> Result<SandboxConfig> {
    let slots = options.slots.unwrap_or(DEFAULT_SLOTS);
    if slots == 0 {
        bail!(usage("--slots must be at least 1"));
    }
    let mut config = SandboxConfig::new(data_dir.join("artefacts"), start_children()?);
    config.max_instances = slots;
    let private_hosts = options.allow_private.as_deref().unwrap_or_default();
    config.private_hosts = private_hosts
        .split(',')
        .map(str::trim)
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .collect();
    if let Some(text) = &options.compile_timeout {
        config.compile_timeout = compile_timeout(text)?;
    }
    Ok(config)
}

/// The short ways that the node takes.
pub(super) fn short_ways(options: &NodeOptions) -> Result<ShortWays> {
    let left_out = options.without_short_ways.as_deref().unwrap_or_default();
    left_out
        .parse()
        .map_err(|error| usage(format!("--without-short-ways: {error}")))
}

/// The settings of pull dispatch.
pub(super) fn dispatch_config(options: &NodeOptions) -> Result<DispatchConfig> {
    let mut dispatch = DispatchConfig::default();
    if let Some(text) = &options.dispatch_horizon {
        dispatch.horizon = text
            .parse()
            .map_err(|error| usage(format!("--dispatch-horizon: {error}")))?;
        if dispatch.horizon.is_zero() || dispatch.horizon >= HORIZON_MAX {
            bail!(usage(format!(
                "--dispatch-horizon must be longer than zero and less than a day, not {text}"
            )));
        }
    }
    dispatch.offers_max = options.max_offers.unwrap_or(dispatch.offers_max);
    Ok(dispatch)
}

/// The timeout for compiling an uploaded script, at most the maximum, which is long enough for a large script on a slow
/// machine.
fn compile_timeout(text: &str) -> Result<Duration> {
    let timeout = text
        .parse::<heddle_domain::Span>()
        .map_err(|error| usage(format!("--compile-timeout: {error}")))?
        .std();
    if timeout.is_zero() || timeout > COMPILE_TIMEOUT_MAX {
        bail!(usage(format!(
            "--compile-timeout must be longer than zero and at most 1h, not {text}"
        )));
    }
    Ok(timeout)
}

/// The settings of notifications.
pub(super) fn notify_config(config: &NodeConfig, address: SocketAddr) -> Result<NotifyConfig> {
    let public_url = match &config.options.public_url {
        Some(text) => {
            let good =
                (text.starts_with("http://") || text.starts_with("https://")) && !text.contains(char::is_whitespace);
            if !good {
                bail!(usage(format!(
                    "--public-url must be an http or https URL, not `{text}`"
                )));
            }
            text.trim_end_matches('/').to_owned()
        }
        None => own_url(address, &host_name()),
    };
    let stalled_after = match &config.options.queue_stalled_after {
        Some(text) => text
            .parse::<heddle_domain::Span>()
            .map_err(|error| usage(format!("--queue-stalled-after: {error}")))?
            .std(),
        None => QUEUE_STALLED_AFTER,
    };
    if stalled_after.is_zero() {
        bail!(usage("--queue-stalled-after must be longer than zero"));
    }
    Ok(NotifyConfig {
        public_url,
        mail_dir: config.dev.then(|| config.data_dir.join("mails")),
        stalled_after,
    })
}

/// The beginning of links, if it is not configured. If a node listens on all addresses, it does not know which one
/// others can reach, so it takes the name of its host.
fn own_url(address: SocketAddr, host: &str) -> String {
    if !address.ip().to_canonical().is_unspecified() {
        return format!("http://{address}");
    }
    let usable = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let host = if !host.is_empty() && host.chars().all(usable) {
        host
    } else {
        "localhost"
    };
    let url = format!("http://{host}:{}", address.port());
    tracing::warn!(%url, "--public-url is not set, so links in notifications begin with the name of this host; set it \
        if other machines do not know this name");
    url
}

pub(super) fn http_config(config: &NodeConfig, device_keys: Vec<Vec<u8>>) -> Result<HttpConfig> {
    let defaults = HttpConfig::default();
    let compat_zone = match &config.options.compat_timezone {
        Some(name) => heddle_domain::schedule::local::parse_zone(name)
            .map_err(|error| usage(format!("--compat-timezone: {error}")))?,
        None => defaults.compat_zone,
    };
    Ok(HttpConfig {
        dev: config.dev,
        device_keys,
        provider: config.provider.clone(),
        rate_max: config.options.rate_limit,
        compat_zone,
        ..defaults
    })
}

pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Installs the bounds that let children of this program do bounded work. Returns the command with which it compiles.
pub(crate) fn start_children() -> Result<CompilerCommand> {
    // The executable of this process, even if an upgrade has replaced the file: a child of another build would compile
    // for another runtime.
    let own = Path::new("/proc/self/exe");
    let program = match own.exists() {
        true => own.to_owned(),
        false => std::env::current_exe().context("cannot find the path of this program")?,
    };
    let called = |command: &str| CompilerCommand {
        program: program.clone(),
        args: vec![command.into()],
        env: Vec::new(),
    };
    heddle_sandbox::bound_by_children(called("bounded-work")).context("cannot start threads")?;
    Ok(called("compile-wasm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_never_lead_to_all_addresses() {
        let check = |address: &str, host: &str, url: &str| {
            assert_eq!(own_url(address.parse().unwrap(), host), url, "{address} {host}");
        };
        check("0.0.0.0:8080", "box-1.example.com", "http://box-1.example.com:8080");
        check("[::]:8080", "box", "http://box:8080");
        check("[::ffff:0.0.0.0]:80", "box", "http://box:80");
        check("0.0.0.0:8080", "", "http://localhost:8080");
        check("0.0.0.0:8080", "a b/c", "http://localhost:8080");
        check("10.0.0.1:8080", "box", "http://10.0.0.1:8080");
        check("[::1]:8080", "box", "http://[::1]:8080");
    }
}
