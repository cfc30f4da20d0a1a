//! From the options of a node to the settings of its parts.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use heddle_domain::dispatch::HORIZON_MAX;
use heddle_domain::schedule::local::parse_zone;
use heddle_engine::{DispatchConfig, NotifyConfig, ShortWays};
use heddle_http::HttpConfig;
use heddle_sandbox::{CompilerCommand, OutboundPolicy, SandboxConfig};

use super::config::NodeConfig;
use super::keys::{check_secrets_key, device_keys};
use crate::config::NodeOptions;
use crate::exit::usage;
use crate::traces;

/// The default of the maximum of concurrent attempts.
const DEFAULT_SLOTS: u32 = 1_000;
/// How long queued work may wait before people are told that nobody claims it.
const QUEUE_STALLED_AFTER: Duration = Duration::from_secs(600);
/// The maximum of the timeout for compiling an uploaded script.
const COMPILE_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// Refuses options with which no node can start, before anything is started or written.
pub(crate) fn check(options: &NodeOptions) -> Result<()> {
    slots(options)?;
    private_hosts(options)?;
    compile_timeout(options)?;
    dispatch_config(options)?;
    short_ways(options)?;
    public_url(options)?;
    stalled_after(options)?;
    http_options(options)?;
    device_keys(options)?;
    check_secrets_key(options)?;
    traces::check(options)
}

/// The settings of the sandbox.
pub(super) fn sandbox_config(options: &NodeOptions, data_dir: &Path) -> Result<SandboxConfig> {
    let mut config = SandboxConfig::new(data_dir.join("artefacts"), start_children()?);
    config.max_instances = slots(options)?;
    config.private_hosts = private_hosts(options)?;
    if let Some(timeout) = compile_timeout(options)? {
        config.compile_timeout = timeout;
    }
    Ok(config)
}

fn slots(options: &NodeOptions) -> Result<u32> {
    match options.slots.unwrap_or(DEFAULT_SLOTS) {
        0 => bail!(usage("--slots must be at least 1")),
        slots => Ok(slots),
    }
}

fn private_hosts(options: &NodeOptions) -> Result<Vec<String>> {
    let hosts = options.allow_private.as_deref().unwrap_or_default().split(',');
    let hosts: Vec<String> = hosts
        .map(str::trim)
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .collect();
    OutboundPolicy::new(&hosts).map_err(|error| usage(format!("--allow-private: {error}")))?;
    Ok(hosts)
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
fn compile_timeout(options: &NodeOptions) -> Result<Option<Duration>> {
    let Some(text) = &options.compile_timeout else {
        return Ok(None);
    };
    let timeout = text
        .parse::<heddle_domain::Span>()
        .map_err(|error| usage(format!("--compile-timeout: {error}")))?
        .std();
    if timeout.is_zero() || timeout > COMPILE_TIMEOUT_MAX {
        bail!(usage(format!(
            "--compile-timeout must be longer than zero and at most 1h, not {text}"
        )));
    }
    Ok(Some(timeout))
}

/// The beginning of links, if it is configured.
fn public_url(options: &NodeOptions) -> Result<Option<String>> {
    let Some(text) = &options.public_url else {
        return Ok(None);
    };
    let good = (text.starts_with("http://") || text.starts_with("https://")) && !text.contains(char::is_whitespace);
    if !good {
        bail!(usage(format!(
            "--public-url must be an http or https URL, not `{text}`"
        )));
    }
    Ok(Some(text.trim_end_matches('/').to_owned()))
}

fn stalled_after(options: &NodeOptions) -> Result<Duration> {
    let stalled_after = match &options.queue_stalled_after {
        Some(text) => text
            .parse::<heddle_domain::Span>()
            .map_err(|error| usage(format!("--queue-stalled-after: {error}")))?
            .std(),
        None => QUEUE_STALLED_AFTER,
    };
    if stalled_after.is_zero() {
        bail!(usage("--queue-stalled-after must be longer than zero"));
    }
    Ok(stalled_after)
}

/// The settings of notifications.
pub(super) fn notify_config(config: &NodeConfig, address: SocketAddr) -> Result<NotifyConfig> {
    Ok(NotifyConfig {
        public_url: public_url(&config.options)?.unwrap_or_else(|| own_url(address, &host_name())),
        mail_dir: config.dev.then(|| config.data_dir.join("mails")),
        stalled_after: stalled_after(&config.options)?,
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
    Ok(HttpConfig {
        dev: config.dev,
        device_keys,
        provider: config.provider.clone(),
        ..http_options(&config.options)?
    })
}

fn http_options(options: &NodeOptions) -> Result<HttpConfig> {
    let mut http = HttpConfig::default();
    if options.rate_limit == Some(0) {
        bail!(usage("--rate-limit must be at least 1; without it, there is no limit"));
    }
    http.rate_max = options.rate_limit;
    if let Some(name) = &options.compat_timezone {
        http.compat_zone = parse_zone(name).map_err(|error| usage(format!("--compat-timezone: {error}")))?;
    }
    Ok(http)
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
    fn what_no_node_can_start_with_is_refused_at_once() {
        check(&NodeOptions::default()).unwrap();
        let text = |text: &str| Some(text.to_owned());
        let mut wrong: Vec<(NodeOptions, &str)> = Vec::new();
        let mut add = |name, change: &dyn Fn(&mut NodeOptions)| {
            let mut options = NodeOptions::default();
            change(&mut options);
            wrong.push((options, name));
        };
        add("--slots", &|options| options.slots = Some(0));
        add("--rate-limit", &|options| options.rate_limit = Some(0));
        add("--allow-private", &|options| options.allow_private = text("!!"));
        add("--otlp-sample", &|options| options.otlp_sample = Some(2.0));
        add("--compile-timeout", &|options| options.compile_timeout = text("2h"));
        add("HEDDLE_SECRETS_KEY", &|options| options.secrets_key = text("short"));
        add("--compat-timezone", &|options| {
            options.compat_timezone = text("Mars/Base")
        });
        for (options, name) in wrong {
            let said = check(&options).unwrap_err().to_string();
            assert!(said.contains(name), "{said}");
        }
    }

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
