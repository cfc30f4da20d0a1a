//! Offers: work that users poll for.

use std::time::Duration;

use heddle_api::{Assignment, Completion, List, Members, MembersPatch, MembersSpec, Offer, Peek, Poll};
use heddle_domain::Span;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{Client, Lines, Result};

/// How many members a page has: as many as the server gives.
const MEMBERS_PAGE: usize = 500;

impl Client {
    /// What a user (the bare id) has to do now; waits for it for at most `wait`; `None` if there is nothing.
    pub async fn next_assignment(&self, uid: &str, wait: Duration) -> Result<Option<Assignment>> {
        let poll = Poll {
            wait: Some(Span::from_std(wait)),
        };
        let request = self.post(&["v1", "dispatch", uid, "next"]).json(&poll);
        request.timeout(Duration::from_secs(60) + wait).send_for_option().await
    }

    /// What a poll would give a user (the bare id) now, without giving it, and why or why not for each offer to the
    /// user.
    pub async fn peek(&self, uid: &str) -> Result<Peek> {
        self.get(&["v1", "dispatch", uid, "peek"]).send().await
    }

    /// Reports what became of an assignment.
    pub async fn complete_assignment(&self, uid: &str, completion: &Completion) -> Result<Assignment> {
        self.post(&["v1", "dispatch", uid, "complete"])
            .json(completion)
            .send()
            .await
    }

    /// Takes an assignment back.
    pub async fn revoke_assignment(&self, id: Uuid) -> Result<Assignment> {
        self.post(&["v1", "assignments", &id.to_string(), "revoke"])
            .json(&json!({}))
            .send()
            .await
    }

    /// Makes or changes an offer.
    pub async fn put_offer(&self, id: &str, offer: &Value) -> Result<Offer> {
        self.put(&["v1", "offers", id]).json(offer).send().await
    }

    /// One page of offers.
    pub async fn offers(&self, cursor: Option<&str>) -> Result<List<Offer>> {
        self.get(&["v1", "offers"]).query_if("cursor", cursor).send().await
    }

    /// The members of an audience (`gid_team`), page after page, until the last page or until there are `max` of them. If
    /// there are more, `next_cursor` says where they begin.
    pub async fn members(&self, audience: &str, max: usize) -> Result<Members> {
        let page = |cursor: Option<&str>| {
            let request = self.get(&["v1", "audiences", audience, "members"]);
            request.query("limit", MEMBERS_PAGE).query_if("cursor", cursor)
        };
        let mut all: Members = page(None).send().await?;
        while all.members.len() < max
            && let Some(cursor) = all.next_cursor.take()
        {
            let next: Members = page(Some(cursor.as_str())).send().await?;
            all.members.extend(next.members);
            (all.count, all.next_cursor) = (next.count, next.next_cursor);
        }
        Ok(all)
    }

    /// Replaces an audience's members (`gid_team`). The answer has the first of them.
    pub async fn put_members(&self, audience: &str, members: &MembersSpec) -> Result<Members> {
        self.put(&["v1", "audiences", audience, "members"])
            .json(members)
            .send()
            .await
    }

    /// Adds and removes members. The answer has the first of them.
    pub async fn patch_members(&self, audience: &str, patch: &MembersPatch) -> Result<Members> {
        self.request(crate::Method::PATCH, &["v1", "audiences", audience, "members"])
            .json(patch)
            .send()
            .await
    }

    /// Events after a cursor, of the kinds named (none: all); ends at the newest unless `follow`.
    pub async fn events(&self, after: Option<&str>, kinds: &[&str], follow: bool) -> Result<Lines> {
        let kinds = (!kinds.is_empty()).then(|| kinds.join(","));
        let request = self
            .get(&["v1", "events"])
            .query_if("after", after)
            .query_if("kinds", kinds);
        let request = request.query("follow", follow);
        request.send_for_lines("application/x-ndjson").await
    }
}
