//! Audiences: user groups and their members.

use heddle_api::{Audience, List, MembersPatch, MembersSpec};
use heddle_domain::dispatch::{bare_uid, check_audience};
use heddle_domain::spec::EntriesMax;
use heddle_domain::{Fault, Faults};
use heddle_store::audience::{AudienceRow, Members};

use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{LIMIT_DEFAULT, Outcome, Request, list_of, ok, put, typed};
use crate::table::{Method, Route};

/// How many members one request names.
const NAMED_MAX: usize = 200_000;

/// The fields with them, which are read up to so many.
const MEMBERS_MAX: EntriesMax = &[("members", NAMED_MAX), ("add", NAMED_MAX), ("remove", NAMED_MAX)];

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/audiences", Access::View, "List user groups", list)
            .list()
            .query("uid", "Only user groups with this user as a member (`x` or `uid_x`).")
            .answers(200, of::<List<Audience>>()),
        Route::new(
            Method::Get,
            "/v1/audiences/{audience}/members",
            Access::View,
            "List an audience's members",
            get,
        )
        .detail("A user group that nobody has created has no members.")
        .list()
        .answers(200, of::<heddle_api::Members>()),
        Route::new(
            Method::Put,
            "/v1/audiences/{audience}/members",
            Access::Operate,
            "Replace a user group's members",
            replace,
        )
        .detail(
            "On this node the change takes effect at the next poll, on the other nodes within two seconds. The answer has the \
             first 50 members; `GET` has all of them, by pages.",
        )
        .takes_spec(of::<MembersSpec>())
        .answers_put(of::<heddle_api::Members>()),
        Route::new(
            Method::Patch,
            "/v1/audiences/{audience}/members",
            Access::Operate,
            "Add and remove members of a user group",
            change,
        )
        .detail("The answer has the first 50 members; `GET` has all of them, by pages.")
        .takes_spec(of::<MembersPatch>())
        .optional()
        .answers(200, of::<heddle_api::Members>()),
    ]
}

fn shown(row: AudienceRow) -> Audience {
    Audience {
        audience: row.name,
        count: row.members,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

/// The audience of the path, which has to be a user group.
fn group(request: &Request) -> Result<String, Problem> {
    let audience = request.part("audience");
    check_audience(audience).map_err(|detail| Problem::invalid_at("", detail))?;
    if !audience.starts_with("gid_") {
        return Err(Problem::invalid_at(
            "",
            "a user (`uid_x`) cannot have members; only a user group (`gid_x`) can",
        ));
    }
    Ok(audience.to_owned())
}

fn uids(given: Vec<String>, pointer: &str) -> Result<Vec<String>, Problem> {
    if given.len() > NAMED_MAX {
        return Err(Problem::invalid(Fault::at(
            pointer,
            format!("there must be at most {NAMED_MAX} users in one call"),
        )));
    }
    let mut faults = Faults::default();
    let mut uids = Vec::with_capacity(given.len());
    for (index, uid) in given.iter().enumerate() {
        match bare_uid(uid) {
            Ok(uid) => uids.push(uid.to_owned()),
            Err(detail) => faults.add(format!("{pointer}/{index}"), detail),
        }
    }
    faults.or(uids).map_err(Problem::invalid)
}

async fn list(request: Request) -> Outcome {
    let uid = match request.query("uid") {
        Some(uid) => Some(bare_uid(uid).map_err(|detail| Problem::invalid_at("/uid", detail))?),
        None => None,
    };
    let page = request
        .app
        .store
        .audiences(uid, request.cursor(), request.limit()?)
        .await?;
    list_of(page, shown)
}

async fn members_of(request: &Request, audience: String, limit: i64) -> Result<heddle_api::Members, Problem> {
    if let Some(uid) = audience.strip_prefix("uid_") {
        return Ok(heddle_api::Members {
            members: vec![uid.to_owned()],
            count: 1,
            next_cursor: None,
            audience,
        });
    }
    let page = request.app.store.members(&audience, request.cursor(), limit).await?;
    let count = request
        .app
        .store
        .audience(&audience)
        .await?
        .map_or(0, |row| row.members);
    Ok(heddle_api::Members {
        audience,
        members: page.items,
        count,
        next_cursor: page.next,
    })
}

async fn get(request: Request) -> Outcome {
    let audience = request.part("audience").to_owned();
    check_audience(&audience).map_err(|_| Problem::not_found("audience", &audience))?;
    let limit = request.limit()?;
    ok(&members_of(&request, audience, limit).await?)
}

async fn replace(mut request: Request) -> Outcome {
    let audience = group(&request)?;
    let bytes_max = request.app.config.batch_bytes_max;
    let body: MembersSpec = typed(request.spec_up_to(bytes_max, MEMBERS_MAX).await?, "")?;
    let members = uids(body.members, "/members")?;
    let done = request
        .app
        .store
        .change_members(request.by(), &audience, Members::Replace(&members))
        .await?;
    put(done.created, &members_of(&request, audience, LIMIT_DEFAULT).await?)
}

async fn change(mut request: Request) -> Outcome {
    let audience = group(&request)?;
    let bytes_max = request.app.config.batch_bytes_max;
    let body: MembersPatch = typed(request.spec_up_to(bytes_max, MEMBERS_MAX).await?, "")?;
    let (add, remove) = (uids(body.add, "/add")?, uids(body.remove, "/remove")?);
    let change = Members::Change {
        add: &add,
        remove: &remove,
    };
    request
        .app
        .store
        .change_members(request.by(), &audience, change)
        .await?;
    ok(&members_of(&request, audience, LIMIT_DEFAULT).await?)
}
