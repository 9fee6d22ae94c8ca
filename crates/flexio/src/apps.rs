//! A registry of programs: one for each hardware model, by name.

use verbless_command::Device;

use crate::app::App;
use crate::error::Error;
use crate::hw_model::HwModel;

/// The programs of a host (`flexio_app_get_list`; in C, constructors register them). A drop frees
/// the list (`flexio_app_list_free`), but no program taken from it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
/// use verbless_flexio::apps::{AppSelect, Apps};
/// use verbless_flexio::{App, HwModel};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (process, file) = (process()?, program());
/// let mut apps = Apps::default();
/// apps.register(App::new("worker", &file)?, HwModel::Default)?;
/// apps.register(App::new("worker", &file)?, HwModel::Bf3)?;
/// let select = AppSelect { device: Some(process.device()), ..AppSelect::new("worker") };
/// assert_eq!(apps.get(&select)?.name(), "worker");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Apps {
    all: Vec<(App, HwModel)>,
}

/// Selects a program (`flexio_app_select_attr`).
#[derive(Debug, Clone, Copy)]
pub struct AppSelect<'a> {
    /// The application's name.
    pub name: &'a str,
    /// The program's hardware model; [`HwModel::Default`] selects the device's.
    pub hw_model: HwModel,
    /// The device for [`HwModel::Default`].
    pub device: Option<&'a Device>,
}

impl<'a> AppSelect<'a> {
    /// Selects the program of this name for the model of a device, which the caller must add.
    pub fn new(name: &'a str) -> Self {
        Self { name, hw_model: HwModel::Default, device: None }
    }
}

impl Apps {
    /// Adds a program for a model. With [`HwModel::Default`] it serves models without another
    /// program of its name.
    ///
    /// # Errors
    /// A program of this name for this model exists; the model is [`HwModel::NotAvailable`].
    pub fn register(&mut self, app: App, hw_model: HwModel) -> Result<(), Error> {
        if hw_model == HwModel::NotAvailable {
            return Err(Error::Failed(format!(
                "{} is for no model, HwModel::NotAvailable: choose another model",
                app.name()
            )));
        }
        if self.find(app.name(), hw_model).is_some() {
            let name = app.name();
            return Err(Error::Failed(format!("there is a program {name} for {hw_model} already")));
        }
        self.all.push((app, hw_model));
        Ok(())
    }

    /// All applications, in the order in which they were added (`flexio_app_get_list`).
    pub fn list(&self) -> impl ExactSizeIterator<Item = (&App, HwModel)> {
        self.all.iter().map(|(app, hw_model)| (app, *hw_model))
    }

    /// The program of a name for a model (`flexio_app_get`): the one added for this model, else the
    /// one for any model. A device of unknown model, such as a VF, gets the one for any model.
    ///
    /// # Errors
    /// There is none (the error lists the models of this name); the model of a device is selected
    /// without a device.
    pub fn get(&self, select: &AppSelect<'_>) -> Result<&App, Error> {
        let name = select.name;
        let wanted = match (select.hw_model, select.device) {
            (HwModel::Default, Some(device)) => HwModel::of(device),
            (HwModel::Default, None) => {
                return Err(Error::Failed(format!(
                    "{name} is selected for the model of a device, and no device is given: \
                     AppSelect::device or AppSelect::hw_model"
                )));
            }
            (wanted, _) => wanted,
        };
        self.best(name, wanted)
    }

    /// The program of a name for this model, else the one for any model.
    fn best(&self, name: &str, wanted: HwModel) -> Result<&App, Error> {
        let found = self.find(name, wanted).or_else(|| self.find(name, HwModel::Default));
        found.ok_or_else(|| {
            let models: Vec<_> = self
                .all
                .iter()
                .filter(|(app, _)| app.name() == name)
                .map(|(_, model)| model.to_string())
                .collect();
            Error::Failed(match models.is_empty() {
                true => format!("there is no program {name}"),
                false if wanted == HwModel::NotAvailable => format!(
                    "the device's model is not known, as a VF's is not, and {name} is for {} \
                     only: name one in AppSelect::hw_model, or register one for HwModel::Default",
                    models.join(", ")
                ),
                false => format!("{name} is for {}, and not for {wanted}", models.join(", ")),
            })
        })
    }

    fn find(&self, name: &str, hw_model: HwModel) -> Option<&App> {
        let same = |(app, model): &&(App, HwModel)| app.name() == name && *model == hw_model;
        self.all.iter().find(same).map(|(app, _)| app)
    }
}
