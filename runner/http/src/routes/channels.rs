//! Channels: where people are told.

use heddle_api::{Channel, ChannelSpec, List, Notification};
use heddle_engine::check_ca;
use heddle_store::channel::{CHANNELS_MAX, ChannelPut, ChannelRow};

use super::grants;
use super::notifications::whole;
use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, found, list_of, ok, put, typed};
use crate::table::{Method, Pace, Route};

fn shown(row: ChannelRow) -> Channel {
    Channel {
        name: row.name,
        shown: row.shown,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/channels",
            Access::View,
            "List channels, without their secrets",
            list,
        )
        .list()
        .answers(200, of::<List<Channel>>()),
        Route::new(
            Method::Put,
            "/v1/channels/{name}",
            Access::Admin,
            "Create or change a channel",
            save,
        )
        .detail(
            "Secrets, passwords and the URLs of chat robots are stored encrypted and never shown again. If a change \
            omits such a value, or sends it as an answer showed it, the value stays the same. An empty secret removes \
            it. An `email` channel needs `smtp`, `from` and `to`; only `heddle dev` accepts one without them.",
        )
        .takes_spec(of::<ChannelSpec>())
        .answers_put(of::<Channel>())
        .problem(409, "The maximum number of channels is reached."),
        Route::new(
            Method::Get,
            "/v1/channels/{name}",
            Access::View,
            "Get a channel, without its secrets",
            get,
        )
        .answers(200, of::<Channel>()),
        Route::new(
            Method::Delete,
            "/v1/channels/{name}",
            Access::Admin,
            "Delete a channel",
            delete,
        )
        .detail(
            "Notifications that are still to be sent to the channel fail and say why: those of older revisions of \
            groups, of scripts, and callbacks.",
        )
        .answers_empty(204)
        .problem(409, "Groups use the channel; `detail` names them."),
        Route::new(
            Method::Post,
            "/v1/channels/{name}/test",
            Access::Operate,
            "Send a test message and return the result",
            test,
        )
        .detail(
            "The message is sent immediately and not retried. The answer is the notification with the state \
            `sent`, or `failed` with the reason.",
        )
        .answers(200, of::<Notification>())
        .pace(Pace::Waits),
    ]
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.channels(request.cursor(), request.limit()?).await?;
    list_of(page, shown)
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let spec: ChannelSpec = typed(grants::as_put(request.spec().await?, &name)?, "")?;
    let app = &request.app;
    let mut faults = check_ca(&spec);
    // Files instead of mails are for trials.
    if !app.config.dev
        && let Err(more) = spec.check_mail_server()
    {
        faults.0.extend(more.0);
        return Err(Problem::invalid(faults));
    }
    grants::require_common_key(app).await?;
    let done = app
        .store
        .put_channel(request.by(), &app.secret_keys, &*app.chance, &name, (spec, faults))
        .await?;
    match done {
        ChannelPut::Invalid(faults) => Err(Problem::invalid(faults)),
        ChannelPut::TooMany => Err(Problem::conflict(format!(
            "there are already {CHANNELS_MAX} channels, which is the \
            maximum"
        ))),
        ChannelPut::Done(done) => put(done.created, &shown(done.row)),
    }
}

async fn get(request: Request) -> Outcome {
    let name = request.name("name", "channel")?;
    found(request.app.store.channel(&name).await?, "channel", &name, shown)
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "channel")?;
    let removal = request.app.store.delete_channel(request.by(), &name).await?;
    grants::removed(removal, "channel", &name)
}

async fn test(request: Request) -> Outcome {
    let name = request.name("name", "channel")?;
    let id = request.app.engine.test_channel(&name).await?;
    let id = id.ok_or_else(|| Problem::not_found("channel", &name))?;
    let row = request.app.store.notification(id).await?;
    let row = row.ok_or_else(|| Problem::not_found("notification", &id.to_string()))?;
    ok(&whole(row))
}
