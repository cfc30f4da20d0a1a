//! What people put: objects that are put while another one that they name is being deleted, or the other way round; tokens
//! and their sessions; keys that are changed.

use heddle_domain::dispatch::Offer;
use heddle_domain::{Chance, Clock};
use heddle_store::Store;
use heddle_store::group::{GroupPut, GroupWrite, ScriptUse};
use heddle_store::offer::{OfferDelete, OfferPut};
use heddle_store::script::ScriptDelete;
use heddle_store::secret::{Grant, SecretKey, SecretKeys};
use heddle_store::token::TokenWrite;
use heddle_store::topic::{TopicPut, TopicWrite};
use heddle_store::usage::{Removal, Users};
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use super::runtimes::three_versions;
use super::{HOUR, Wall, bare_group, by, close, count, meanwhile, set_up, unhindered, waiting};

fn offer(spec: Value) -> Offer {
    let spec = serde_json::from_value(spec).expect("a spec");
    Offer::compile(spec, Wall.now()).expect("an offer")
}

/// Puts an offer as another connection does, which does not commit.
const OTHER_OFFER: &str = "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats,
         return_failed, enabled, template, spec, created_at, updated_at)
     VALUES ('other', 'gid_g', 1, 1, now(), 1, false, false, true, 't', '{}', now(), now())";

/// Of two who put one name, the later waits, also while there is no such object, and knows what the earlier has written. A
/// deletion and a change of one object wait for each other.
#[tokio::test]
async fn one_name() {
    let (_world, store, sql, mut other) = set_up().await;
    for (commits, created) in [(true, false), (false, true)] {
        sql.batch_execute("DELETE FROM heddle.pools").await.unwrap();
        let puts = other.transaction().await.unwrap();
        puts.batch_execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('heddle/pool/p', 0));
             INSERT INTO heddle.pools (name, slots, created_at, updated_at) VALUES ('p', 5, now(), now())",
        )
        .await
        .unwrap();
        let put = meanwhile(&sql, store.put_pool(by(), "p", 5), close(puts, commits))
            .await
            .unwrap();
        assert_eq!((put.created, put.changed), (created, created));
    }
    let deletion = other.transaction().await.unwrap();
    assert_eq!(deletion.execute("DELETE FROM heddle.pools", &[]).await.unwrap(), 1);
    let put = meanwhile(&sql, store.put_pool(by(), "p", 6), close(deletion, true)).await;
    assert!(put.unwrap().created, "it was deleted before");
    let changes = other.transaction().await.unwrap();
    let change = "UPDATE heddle.pools SET slots = 7";
    assert_eq!(changes.execute(change, &[]).await.unwrap(), 1);
    let deleted = meanwhile(&sql, store.delete_pool(by(), "p"), close(changes, true)).await;
    assert_eq!(deleted.unwrap(), Removal::Done);
}

/// A deletion waits for whoever is just putting an object under the name, and deletes it.
#[tokio::test]
async fn deletions_of_what_is_being_put() {
    let (_world, store, sql, mut other) = set_up().await;
    let delete = async |noun: &str| match noun {
        "category" => store.delete_category(by(), "new").await,
        "channel" => store.delete_channel(by(), "new").await,
        "pool" => store.delete_pool(by(), "new").await,
        noun => panic!("no {noun} is put here"),
    };
    for (noun, table, columns, values) in [
        ("category", "categories", "description", "''"),
        (
            "channel",
            "channels",
            "kind, options, ciphertext, nonce, key_id",
            "'webhook', '{}', '', decode(repeat('00', 24), 'hex'), 'k'",
        ),
        ("pool", "pools", "slots", "1"),
    ] {
        let puts = other.transaction().await.unwrap();
        puts.batch_execute(&format!(
            "SELECT pg_advisory_xact_lock(hashtextextended('heddle/{noun}/new', 0));
             INSERT INTO heddle.{table} (name, {columns}, created_at, updated_at) VALUES ('new', {values}, now(), now())"
        ))
        .await
        .unwrap();
        let deleted = meanwhile(&sql, delete(noun), close(puts, true)).await;
        assert_eq!(deleted.unwrap(), Removal::Done, "{noun}");
    }
}

/// An offer waits for a deletion of its template, and a deletion of a template for an offer.
#[tokio::test]
async fn offers_and_their_template() {
    let (_world, store, sql, mut other) = set_up().await;
    sql.batch_execute(
        "INSERT INTO heddle.templates (name, schema, created_at, updated_at) VALUES ('t', '{}', now(), now())",
    )
    .await
    .unwrap();
    let due = "2026-01-01T00:00:00Z";
    let offer = offer(json!({"audience": "gid_g", "starts_at": due, "template": "t"}));
    let puts = other.transaction().await.unwrap();
    let hold = "SELECT FROM heddle.templates WHERE name = 't' FOR SHARE";
    puts.batch_execute(&format!("{hold}; {OTHER_OFFER}")).await.unwrap();
    let deleted = meanwhile(&sql, store.delete_template(by(), "t"), close(puts, true)).await;
    let Removal::UsedBy(users) = deleted.unwrap() else {
        panic!("an offer names it");
    };
    assert_eq!(users.offers, ["other"]);
    for (name, commits) in [("kept", false), ("gone", true)] {
        let deletion = other.transaction().await.unwrap();
        let deletes = "DELETE FROM heddle.templates";
        assert_eq!(deletion.execute(deletes, &[]).await.unwrap(), 1);
        let put = store.put_offer(by(), name, &offer, false, 9);
        let put = meanwhile(&sql, put, close(deletion, commits)).await.unwrap();
        assert_eq!(put == OfferPut::NoTemplate, commits, "{put:?}");
    }
}

/// Repeating offers to one audience are counted one after another, and none of them is put and deleted at once.
#[tokio::test]
async fn offers_to_one_audience() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(json!({"audience": "gid_g", "every": "1h"}));
    for (commits, name) in [(false, "one"), (true, "two")] {
        sql.batch_execute("DELETE FROM heddle.offer_versions; DELETE FROM heddle.offers")
            .await
            .unwrap();
        let puts = other.transaction().await.unwrap();
        let hold = "SELECT pg_advisory_xact_lock(hashtextextended('heddle/audience/gid_g', 0))";
        puts.batch_execute(&format!("{hold}; {OTHER_OFFER}")).await.unwrap();
        let put = store.put_offer(by(), name, &offer, false, 1);
        let put = meanwhile(&sql, put, close(puts, commits)).await.unwrap();
        assert_eq!(put == OfferPut::TooMany(1), commits, "{put:?}");
    }
    let changes = other.transaction().await.unwrap();
    let hold = "SELECT FROM heddle.offers WHERE name = 'other' FOR UPDATE";
    assert_eq!(changes.execute(hold, &[]).await.unwrap(), 1);
    let deleted = meanwhile(&sql, store.delete_offer(by(), "other"), close(changes, false)).await;
    assert_eq!(deleted.unwrap(), OfferDelete::Deleted);

    // Long ago: it is removed with its versions, but not while somebody has it.
    let holder = other.transaction().await.unwrap();
    assert_eq!(holder.execute(hold, &[]).await.unwrap(), 1);
    let prune = async || store.prune_offers(Wall.now() + HOUR, 10).await.expect("an answer");
    assert_eq!(unhindered(prune()).await, 0);
    close(holder, false).await;
    assert_eq!(prune().await, 1);
}

/// As a deletion of a script does.
const DELETES_SCRIPT: &str = "SELECT FROM heddle.scripts WHERE name = 's' FOR UPDATE;
    UPDATE heddle.scripts SET active_version = NULL, deleted_at = now() WHERE name = 's'";

/// A topic waits for a deletion of its script, a group for that of its own, and the deletion for them.
#[tokio::test]
async fn scripts_and_who_names_them() {
    let (_world, store, sql, mut other) = set_up().await;
    three_versions(&sql).await;
    let spec = json!({"script": "s"});
    let topic = |name: &'static str| TopicWrite {
        name,
        script: Some("s"),
        queue: None,
        spec: &spec,
    };
    let tasks = json!({"tasks": {"t": {"script": "s"}}});
    let scripts = [ScriptUse {
        script: "s".into(),
        version: None,
    }];
    let group = |name: &'static str| GroupWrite {
        scripts: &scripts,
        ..bare_group(name, &tasks)
    };
    let puts = other.transaction().await.unwrap();
    puts.batch_execute(
        "SELECT FROM heddle.scripts FOR SHARE;
         INSERT INTO heddle.topics (name, script, spec, created_at, updated_at) VALUES ('other', 's', '{}', now(), now())",
    )
    .await
    .unwrap();
    let deleted = meanwhile(&sql, store.delete_script(by(), "s"), close(puts, true)).await;
    let ScriptDelete::UsedBy { topics, .. } = deleted.unwrap() else {
        panic!("a topic names it");
    };
    assert_eq!(topics, ["other"]);
    sql.batch_execute("DELETE FROM heddle.topics").await.unwrap();
    let puts = other.transaction().await.unwrap();
    puts.batch_execute(
        "SELECT FROM heddle.scripts FOR KEY SHARE;
         WITH made AS (INSERT INTO heddle.groups (name, revision, revision_id, created_at, updated_at)
                       VALUES ('other', 1, 1, now(), now()) RETURNING id)
         INSERT INTO heddle.script_uses (group_id, script_id, version) SELECT made.id, s.id, 0 FROM made, heddle.scripts s",
    )
    .await
    .unwrap();
    let deleted = meanwhile(&sql, store.delete_script(by(), "s"), close(puts, true)).await;
    let ScriptDelete::UsedBy { groups, .. } = deleted.unwrap() else {
        panic!("a group names it");
    };
    assert_eq!(groups, ["other"]);

    let deletion = other.transaction().await.unwrap();
    deletion.batch_execute(DELETES_SCRIPT).await.unwrap();
    let put = store.put_topic(by(), topic("kept"), &[], None);
    let put = meanwhile(&sql, put, close(deletion, false)).await.unwrap();
    assert!(matches!(put, TopicPut::Done(_)), "{put:?}");
    let deletion = other.transaction().await.unwrap();
    deletion.batch_execute(DELETES_SCRIPT).await.unwrap();
    let put = meanwhile(&sql, store.put_group(by(), group("kept")), close(deletion, false)).await;
    assert!(matches!(put.unwrap(), GroupPut::Done(_)));
    let deletion = other.transaction().await.unwrap();
    deletion.batch_execute(DELETES_SCRIPT).await.unwrap();
    let put = store.put_topic(by(), topic("gone"), &[], None);
    assert_eq!(
        meanwhile(&sql, put, close(deletion, true)).await.unwrap(),
        TopicPut::Gone("script")
    );
    sql.batch_execute("UPDATE heddle.scripts SET active_version = 1, deleted_at = NULL")
        .await
        .unwrap();
    let deletion = other.transaction().await.unwrap();
    deletion.batch_execute(DELETES_SCRIPT).await.unwrap();
    let put = meanwhile(&sql, store.put_group(by(), group("gone")), close(deletion, true)).await;
    assert_eq!(put.unwrap(), GroupPut::UnknownScripts(scripts.to_vec()));
}

/// `delete_category`: waits for a PUT of a group that names the category, and leaves it. A PUT of a group waits for the
/// deletion of its category from its first lock on, and makes the category anew.
/// Without that lock, the deletion would find no group and fail at the foreign key; and the PUT would not wait.
#[tokio::test]
async fn categories_and_their_groups() {
    let (_world, store, sql, mut other) = set_up().await;
    sql.batch_execute(
        "INSERT INTO heddle.categories (name, created_at, updated_at) VALUES ('c', now(), now());
         INSERT INTO heddle.groups (name, revision, revision_id, category, created_at, updated_at, deleted_at)
              VALUES ('before', 1, 1, 'c', now(), now(), now())",
    )
    .await
    .unwrap();
    let puts = other.transaction().await.unwrap();
    puts.batch_execute(
        "UPDATE heddle.categories SET description = description WHERE name = 'c';
         INSERT INTO heddle.groups (name, revision, revision_id, category, created_at, updated_at)
              VALUES ('other', 1, 1, 'c', now(), now())",
    )
    .await
    .unwrap();
    let deleted = meanwhile(&sql, store.delete_category(by(), "c"), close(puts, true)).await;
    let Removal::UsedBy(users) = deleted.unwrap() else {
        panic!("a group is in it");
    };
    assert_eq!(users.groups, ["other"]);
    sql.batch_execute("UPDATE heddle.groups SET deleted_at = now() WHERE name = 'other'")
        .await
        .unwrap();

    // The deletion has the category, and waits for a deleted group that was in it.
    let holder = other.transaction().await.unwrap();
    let hold = "SELECT FROM heddle.groups WHERE name = 'before' FOR UPDATE";
    assert_eq!(holder.execute(hold, &[]).await.unwrap(), 1);
    let spec = json!({"tasks": {}});
    let group = GroupWrite {
        category: Some("c"),
        ..bare_group("g", &spec)
    };
    let put = async {
        waiting(&sql, 1).await;
        store.put_group(by(), group).await.expect("an answer")
    };
    let release = async {
        waiting(&sql, 2).await;
        close(holder, false).await;
    };
    let delete = store.delete_category(by(), "c");
    let (deleted, put, ()) = unhindered(async { tokio::join!(delete, put, release) }).await;
    assert_eq!(deleted.unwrap(), Removal::Done);
    assert!(matches!(put, GroupPut::Done(_)), "{put:?}");
    let own = "groups g JOIN heddle.categories c ON c.name = g.category WHERE g.name = 'g'";
    assert_eq!(count(&sql, own).await, 1);
}

/// What people delete while others name it.
#[derive(Clone, Copy, Debug)]
enum Object {
    Channel,
    Pool,
    Secret,
    Connection,
}

impl Object {
    fn table(self) -> &'static str {
        match self {
            Self::Channel => "channels",
            Self::Pool => "pools",
            Self::Secret => "secrets",
            Self::Connection => "connections",
        }
    }

    async fn make(self, sql: &Client, name: &str) {
        let (columns, values) = match self {
            Self::Channel => (
                "kind, options, ciphertext, nonce, key_id",
                "'webhook', '{}', '', nonce, 'k'",
            ),
            Self::Pool => ("slots", "1"),
            Self::Secret | Self::Connection => ("ciphertext, nonce, key_id", "'', nonce, 'k'"),
        };
        sql.batch_execute(&format!(
            "INSERT INTO heddle.{table} (name, {columns}, created_at, updated_at)
             SELECT '{name}', {values}, now(), now() FROM decode(repeat('00', 24), 'hex') AS nonce",
            table = self.table()
        ))
        .await
        .expect("an object");
    }

    async fn delete(self, store: &Store, name: &str) -> Removal {
        let deleted = match self {
            Self::Channel => store.delete_channel(by(), name).await,
            Self::Pool => store.delete_pool(by(), name).await,
            Self::Secret => store.delete_secret(by(), name).await,
            Self::Connection => store.delete_connection(by(), name).await,
        };
        deleted.expect("an answer")
    }
}

/// Who names such an object.
#[derive(Clone, Copy, Debug)]
enum User {
    Group,
    Topic,
}

impl User {
    /// Puts one; `false`: what it names is gone.
    async fn put(self, store: &Store, name: &str, spec: &Value) -> bool {
        match self {
            Self::Group => match store.put_group(by(), bare_group(name, spec)).await.expect("an answer") {
                GroupPut::Done(_) => true,
                GroupPut::Outdated => false,
                other => panic!("{other:?}"),
            },
            Self::Topic => {
                let topic = TopicWrite {
                    name,
                    script: Some("s"),
                    queue: None,
                    spec,
                };
                match store.put_topic(by(), topic, &[], None).await.expect("an answer") {
                    TopicPut::Done(_) => true,
                    TopicPut::Gone("secrets" | "sql") => false,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Inserts one. While this is not committed, a PUT of the name gets as far as its own insert, and waits there.
    fn insert(self, name: &str) -> String {
        match self {
            Self::Group => format!(
                "INSERT INTO heddle.groups (name, revision, revision_id, created_at, updated_at)
                 VALUES ('{name}', 1, 1, now(), now())"
            ),
            Self::Topic => format!(
                "INSERT INTO heddle.topics (name, script, spec, created_at, updated_at)
                 VALUES ('{name}', 's', '{{}}', now(), now())"
            ),
        }
    }

    fn names(self, users: Users) -> Vec<String> {
        match self {
            Self::Group => users.groups,
            Self::Topic => users.topics,
        }
    }
}

/// An object, who names it, and the spec that does, for the object's name.
type Case = (Object, User, fn(&str) -> Value);

/// `hold`, `hold_of_topic`: a PUT of a group or a topic waits for the deletion of an object that it names, and a deletion for
/// a PUT that has come that far. Other changes of the object's row are not held up.
/// Without the lock, the PUT would read the object as it was before the deletion and wait for nobody; and the deletion would
/// be over before the PUT is committed.
#[tokio::test]
async fn objects_and_who_names_them() {
    let (_world, store, sql, mut other) = set_up().await;
    three_versions(&sql).await;
    let cases: [Case; 6] = [
        (
            Object::Channel,
            User::Group,
            |x| json!({"tasks": {}, "notify": {"channels": [x]}}),
        ),
        (
            Object::Pool,
            User::Group,
            |x| json!({"tasks": {"t": {"pools": {x: 1}}}}),
        ),
        (
            Object::Secret,
            User::Group,
            |x| json!({"tasks": {"t": {"secrets": [x]}}}),
        ),
        (
            Object::Connection,
            User::Group,
            |x| json!({"tasks": {"t": {"sql": [x]}}}),
        ),
        (Object::Secret, User::Topic, |x| json!({"script": "s", "secrets": [x]})),
        (Object::Connection, User::Topic, |x| json!({"script": "s", "sql": [x]})),
    ];
    for (n, (object, user, spec)) in cases.into_iter().enumerate() {
        let what = format!("{object:?}, {user:?}");
        let (x, held, kept, gone) = (
            format!("x{n}"),
            format!("held{n}"),
            format!("kept{n}"),
            format!("gone{n}"),
        );
        let (spec, table) = (spec(&x), object.table());
        object.make(&sql, &x).await;

        let deletes = format!("DELETE FROM heddle.{table} WHERE name = '{x}'");
        let deletion = other.transaction().await.unwrap();
        deletion.batch_execute(&deletes).await.unwrap();
        let put = user.put(&store, &kept, &spec);
        assert!(meanwhile(&sql, put, close(deletion, false)).await, "{what}");

        // The PUT has the object, and waits for its own name.
        let namesake = other.transaction().await.unwrap();
        namesake.batch_execute(&user.insert(&held)).await.unwrap();
        let put = user.put(&store, &held, &spec);
        let delete = async {
            waiting(&sql, 1).await;
            let change = format!("UPDATE heddle.{table} SET updated_at = now() WHERE name = '{x}'");
            assert_eq!(sql.execute(&change, &[]).await.unwrap(), 1, "{what}");
            object.delete(&store, &x).await
        };
        let release = async {
            waiting(&sql, 2).await;
            close(namesake, false).await;
        };
        let (put, deleted, ()) = unhindered(async { tokio::join!(put, delete, release) }).await;
        assert!(put, "{what}");
        let Removal::UsedBy(users) = deleted else {
            panic!("{what}: it is named");
        };
        assert_eq!(user.names(users), [held, kept], "{what}");

        let deletion = other.transaction().await.unwrap();
        deletion.batch_execute(&deletes).await.unwrap();
        let put = user.put(&store, &gone, &spec);
        assert!(!meanwhile(&sql, put, close(deletion, true)).await, "{what}");
    }
}

/// A sign-in waits for a revocation of its token, and fails; a revocation waits for a sign-in, and ends its session.
#[tokio::test]
async fn sessions_and_revocations() {
    let (_world, store, sql, mut other) = set_up().await;
    let token = async |name: &str, number: u8| {
        let write = TokenWrite {
            id: Uuid::from_u128(number.into()),
            name,
            hash: [number; 32],
            role: "admin",
            queues: &[],
            uids: &[],
            expires_at: None,
        };
        let made = store.create_token(by(), write).await.expect("an answer");
        made.expect("a token")
    };
    let until = Wall.now() + HOUR;
    let (one, two) = (token("one", 1).await, token("two", 2).await);
    for (hash, commits) in [([3; 32], false), ([4; 32], true)] {
        let revocation = other.transaction().await.unwrap();
        let revokes = "UPDATE heddle.tokens SET revoked_at = now() WHERE name = 'one'";
        assert_eq!(revocation.execute(revokes, &[]).await.unwrap(), 1);
        let begun = store.begin_session(by(), &hash, &one, until);
        let begun = meanwhile(&sql, begun, close(revocation, commits)).await;
        assert_eq!(begun.is_err(), commits, "{begun:?}");
    }
    let begins = other.transaction().await.unwrap();
    begins
        .batch_execute(
            "SELECT FROM heddle.tokens WHERE name = 'two' FOR SHARE;
             INSERT INTO heddle.sessions (hash, token_id, created_at, expires_at)
             SELECT sha256('two'), id, now(), now() + interval '1 hour' FROM heddle.tokens WHERE name = 'two'",
        )
        .await
        .unwrap();
    let revoked = meanwhile(&sql, store.revoke_token(by(), two.id), close(begins, true)).await;
    assert!(revoked.unwrap());
    let left = "sessions s JOIN heddle.tokens t ON t.id = s.token_id WHERE t.name = 'two'";
    assert_eq!(count(&sql, left).await, 0);
}

/// That a token was used is noted without a wait: one that somebody has locked is left out.
#[tokio::test]
async fn tokens_that_are_used() {
    let (_world, store, sql, mut other) = set_up().await;
    sql.batch_execute(
        "INSERT INTO heddle.tokens (id, name, hash, role, created_at)
         SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 't' || n, sha256(n::text::bytea), 'admin', now()
           FROM generate_series(1, 2) AS n",
    )
    .await
    .unwrap();
    let holder = other.transaction().await.unwrap();
    let hold = "SELECT FROM heddle.tokens WHERE name = 't1' FOR UPDATE";
    assert_eq!(holder.execute(hold, &[]).await.unwrap(), 1);
    let uses = [1, 2].map(|number| (Uuid::from_u128(number), Wall.now()));
    unhindered(store.touch_tokens(&uses)).await.unwrap();
    close(holder, false).await;
    let used = "SELECT name FROM heddle.tokens WHERE last_used_at IS NOT NULL AND name IN ('t1', 't2')";
    assert_eq!(sql.query_one(used, &[]).await.unwrap().get::<_, String>(0), "t2");
}

#[derive(Debug)]
struct Same;

impl Chance for Same {
    fn bits(&self) -> u128 {
        7
    }
}

/// A change of keys locks rows in the order of names. It waits for a PUT, and seals what that has written.
#[tokio::test]
async fn changes_of_keys() {
    let (_world, store, sql, mut other) = set_up().await;
    let old = SecretKey::new([1; 32]);
    let before = SecretKeys::new(old.clone(), Vec::new());
    let after = SecretKeys::new(SecretKey::new([2; 32]), vec![old]);
    let grant = Grant::default();
    for name in ["b", "a"] {
        let put = store.put_secret(by(), &before, &Same, name, "secret", &grant);
        assert!(put.await.unwrap().created);
    }
    let puts = other.transaction().await.unwrap();
    let grants = "UPDATE heddle.secrets SET groups = '{g}' WHERE name = 'a'";
    assert_eq!(puts.execute(grants, &[]).await.unwrap(), 1);
    let rotated = meanwhile(&sql, store.rotate_keys(by(), &after, &Same), async {
        let next = "SELECT FROM heddle.secrets WHERE name = 'b' FOR UPDATE NOWAIT";
        assert_eq!(puts.execute(next, &[]).await.expect("it is locked after `a`"), 1);
        close(puts, true).await;
    })
    .await;
    assert_eq!(rotated.unwrap().secrets, 2);
    assert_eq!(
        store
            .foreign_seals(&SecretKeys::new(SecretKey::new([2; 32]), Vec::new()))
            .await
            .unwrap(),
        []
    );
    let (value, grant) = store.secret_value(&after, "a").await.unwrap().expect("a secret");
    assert_eq!((value.as_str(), grant.groups), ("secret", vec!["g".to_owned()]));
}
