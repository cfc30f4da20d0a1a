//! Links between groups: their kinds, and the words for them in the database and in the API.

use std::str::FromStr;

use crate::spec::Need;

/// Why a group is linked to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// It follows the runs of the other.
    DependsOn,
    /// A task of it starts a sub-run of the other.
    SubRun,
}

impl LinkKind {
    /// Each kind, in the order in which an error lists them.
    pub const ALL: [Self; 2] = [Self::DependsOn, Self::SubRun];

    /// The word in the database and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DependsOn => "depends_on",
            Self::SubRun => "sub_run",
        }
    }
}

impl FromStr for LinkKind {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == word);
        found.ok_or_else(|| format!("`{word}` is not one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

impl Need {
    /// Each need, in the order in which an error lists them.
    pub const ALL: [Self; 2] = [Self::Latest, Self::Interval];

    /// The word in the database and in specs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::Interval => "interval",
        }
    }
}

impl FromStr for Need {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|need| need.as_str() == word);
        found.ok_or_else(|| format!("`{word}` is not one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_means_one_thing() {
        for kind in LinkKind::ALL {
            assert_eq!(kind.as_str().parse::<LinkKind>(), Ok(kind));
        }
        for need in Need::ALL {
            assert_eq!(need.as_str().parse::<Need>(), Ok(need));
            assert_eq!(serde_json::to_value(need).unwrap(), need.as_str());
        }
        let error = "called".parse::<LinkKind>().unwrap_err();
        assert_eq!(error, "`called` is not one of depends_on, sub_run");
        assert!("".parse::<Need>().is_err());
    }
}
