//! Every word that pages show, in each language: Fluent files in `words/`, read by `fluent-bundle`. The test below
//! finds keys that a language lacks, and keys that the code uses but no file has.

use std::sync::LazyLock;

use fluent_bundle::concurrent::FluentBundle;
use fluent_bundle::{FluentArgs, FluentResource, FluentValue};

use crate::digits;

/// A language of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lang {
    En,
    Zh,
}

const EN: &str = include_str!("../words/en.ftl");
const ZH: &str = include_str!("../words/zh.ftl");

type Bundle = FluentBundle<FluentResource>;

fn bundle(tag: &str, text: &str) -> Bundle {
    let resource = match FluentResource::try_new(text.to_owned()) {
        Ok(resource) => resource,
        // A test reads all of it; what cannot be read is left out.
        Err((resource, _)) => resource,
    };
    let mut bundle = FluentBundle::new_concurrent(tag.parse().into_iter().collect());
    // Names are in <bdi> where they are shown; marks would disturb titles and attributes.
    bundle.set_use_isolating(false);
    bundle.add_resource_overriding(resource);
    bundle
}

static BUNDLES: LazyLock<[Bundle; 2]> = LazyLock::new(|| [bundle("en", EN), bundle("zh-CN", ZH)]);

impl Lang {
    pub(crate) const ALL: [Self; 2] = [Self::En, Self::Zh];

    /// For the attribute `lang` of HTML.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh-CN",
        }
    }

    /// The name of the language in the cookie and in forms.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh",
        }
    }

    /// Its own name for itself.
    pub(crate) fn own_name(self) -> &'static str {
        match self {
            Self::En => "English",
            Self::Zh => "简体中文",
        }
    }

    /// Between a word and what it is about.
    pub(crate) fn colon(self) -> &'static str {
        match self {
            Self::En => ": ",
            Self::Zh => "：",
        }
    }

    /// Between the things of a list.
    pub(crate) fn comma(self) -> &'static str {
        match self {
            Self::En => ", ",
            Self::Zh => "、",
        }
    }

    /// What separates two sentences, with its space if the language has one.
    pub(crate) fn stop(self) -> &'static str {
        match self {
            Self::En => ". ",
            Self::Zh => "。",
        }
    }

    pub(crate) fn parse(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lang| lang.code() == code)
    }

    /// The first language that the browser accepts, in its order, and that Heddle has.
    pub(crate) fn accepted(header: &str) -> Self {
        let mut wanted: Vec<(f32, Self)> = header
            .split(',')
            .filter_map(|entry| {
                let (tag, rest) = entry.split_once(';').unwrap_or((entry, ""));
                let tag = tag.trim().to_ascii_lowercase();
                let lang = match tag.split('-').next()? {
                    "en" => Self::En,
                    "zh" => Self::Zh,
                    _ => return None,
                };
                let weight = rest.trim().strip_prefix("q=").map_or(Some(1.0), |q| q.parse().ok())?;
                Some((weight, lang))
            })
            .collect();
        // The sort is stable: of equal ones, the first stays first.
        wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
        wanted.first().map_or(Self::En, |(_, lang)| *lang)
    }

    /// The message of a key, with its gaps filled; the key itself if the language lacks it.
    pub(crate) fn t(self, key: &str, args: &[(&str, Arg)]) -> String {
        let bundle = &BUNDLES[self as usize];
        let Some(pattern) = bundle.get_message(key).and_then(|message| message.value()) else {
            return key.to_owned();
        };
        let mut given = FluentArgs::new();
        for (name, value) in args {
            given.set(
                *name,
                match value {
                    Arg::Text(text) => FluentValue::from(text.as_str()),
                    Arg::Number(number) => FluentValue::from(*number),
                },
            );
        }
        bundle
            .format_pattern(pattern, Some(&given), &mut Vec::new())
            .into_owned()
    }
}

/// The value for a message's gap.
pub(crate) enum Arg {
    Text(String),
    Number(i64),
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}
impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
impl From<&String> for Arg {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}
impl From<i64> for Arg {
    /// Large numbers have commas. They are texts: no language has a separate plural form for one of them.
    fn from(number: i64) -> Self {
        match number {
            -999..=999 => Self::Number(number),
            _ => Self::Text(digits::number(number)),
        }
    }
}
impl From<usize> for Arg {
    fn from(number: usize) -> Self {
        Self::from(number as i64)
    }
}

impl Arg {
    /// A number, or, if there are `more` than were counted, at least that number.
    pub(crate) fn at_least(number: i64, more: bool) -> Self {
        match more {
            true => Self::Text(format!("{}+", digits::number(number))),
            false => number.into(),
        }
    }

    /// A number that was counted up to `most`.
    pub(crate) fn capped(number: i64, most: i64) -> Self {
        match number >= most {
            true => Self::Text(digits::capped(number, most)),
            false => number.into(),
        }
    }
}

/// `t!(ctx, "key", name = value)`: a message in the viewer's language.
macro_rules! t {
    ($ctx:expr, $key:expr $(, $name:ident = $value:expr)* $(,)?) => {
        $ctx.lang.t($key, &[$((stringify!($name), $crate::words::Arg::from($value))),*])
    };
}
pub(crate) use t;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Keys, and the gaps in each.
    fn keys(text: &str) -> BTreeMap<String, BTreeSet<String>> {
        let mut keys = BTreeMap::new();
        let mut key = String::new();
        for line in text.lines() {
            let begins = line.starts_with(|c: char| c.is_ascii_lowercase());
            if let Some((name, _)) = line.split_once(" =").filter(|_| begins) {
                key = name.to_owned();
                assert!(
                    keys.insert(key.clone(), BTreeSet::new()).is_none(),
                    "{key} is written twice"
                );
            }
            for gap in line.split("{ $").skip(1) {
                let gap: String = gap.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                keys.entry(key.clone()).or_default().insert(gap);
            }
        }
        keys
    }

    #[test]
    fn each_language_has_every_word() {
        let (en, zh) = (keys(EN), keys(ZH));
        let lacks = |one: &BTreeMap<_, _>, other: &BTreeMap<String, _>| -> Vec<String> {
            other.keys().filter(|key| !one.contains_key(*key)).cloned().collect()
        };
        assert!(lacks(&zh, &en).is_empty(), "Chinese lacks {:?}", lacks(&zh, &en));
        assert!(lacks(&en, &zh).is_empty(), "English lacks {:?}", lacks(&en, &zh));
        for (key, gaps) in &en {
            assert_eq!(gaps, &zh[key], "{key} has other gaps in Chinese");
        }
        for lang in [EN, ZH] {
            let read = FluentResource::try_new(lang.to_owned());
            assert!(read.is_ok(), "{:?}", read.err().map(|(_, errors)| errors));
        }
    }

    #[test]
    fn every_word_that_the_code_asks_for_is_written() {
        fn visit(directory: &std::path::Path, found: &mut BTreeSet<String>) {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    visit(&path, found);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                for marker in ["t!(ctx, \"", "t!(self, \"", "t!(page, \"", "word(\"", "said(\""] {
                    for rest in text.split(marker).skip(1) {
                        if let Some((key, _)) = rest.split_once('"') {
                            found.insert(key.to_owned());
                        }
                    }
                }
            }
        }
        let mut asked = BTreeSet::new();
        visit(
            &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut asked,
        );
        let written = keys(EN);
        let missing: Vec<_> = asked
            .iter()
            .filter(|key| !key.is_empty() && !written.contains_key(*key))
            .collect();
        assert!(missing.is_empty(), "nobody has written {missing:?}");
        // Keys that are made of a state or a similar word.
        for state in heddle_domain::state::TaskState::ALL {
            assert!(written.contains_key(&format!("state-{}", state.as_str())), "{state}");
        }
        for state in heddle_domain::state::RunState::ALL {
            assert!(written.contains_key(&format!("state-{}", state.as_str())), "{state}");
        }
        for trigger in heddle_domain::state::Trigger::ALL {
            for of in ["trigger", "created"] {
                assert!(written.contains_key(&format!("{of}-{}", trigger.as_str())), "{trigger}");
            }
        }
    }

    #[test]
    fn the_browser_chooses() {
        for (header, lang) in [
            ("", Lang::En),
            ("de,fr;q=0.5", Lang::En),
            ("zh-CN,zh;q=0.9,en;q=0.8", Lang::Zh),
            ("en-US,en;q=0.9,zh;q=0.8", Lang::En),
            ("en;q=0.2, zh-Hans;q=0.7", Lang::Zh),
        ] {
            assert_eq!(Lang::accepted(header), lang, "{header}");
        }
    }

    #[test]
    fn gaps_are_filled_and_plurals_are_right() {
        assert_eq!(Lang::En.t("runs-count", &[("n", Arg::from(1_usize))]), "1 run");
        assert_eq!(Lang::En.t("runs-count", &[("n", Arg::from(3_usize))]), "3 runs");
        assert_eq!(Lang::Zh.t("runs-count", &[("n", Arg::from(3_usize))]), "3 次运行");
        assert_eq!(Lang::En.t("runs-count", &[("n", Arg::from(12_345_i64))]), "12,345 runs");
        assert_eq!(
            Lang::En.t("runs-count", &[("n", Arg::capped(1_000, 1_000))]),
            "1,000+ runs"
        );
        assert_eq!(Lang::En.t("runs-count", &[("n", Arg::capped(1, 1_000))]), "1 run");
        let would = |n, more| Lang::En.t("cancel-would", &[("n", Arg::at_least(n, more))]);
        assert_eq!(would(1, false), "1 message matches and has not been sent.");
        assert_eq!(would(1_000, true), "1,000+ messages match and have not been sent.");
    }
}
